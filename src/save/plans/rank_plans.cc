#include "save/plans/rank_plans.h"

#include <set>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/guarded.h"
#include "plan/fields.h"

namespace varve {
Status AnnotatePlan(const Status& status, std::size_t rank) {
  return CopyOf(status).Annotate("plan of rank " + std::to_string(rank));
}

Status ApplySizes(const std::vector<ObjectSize>& sizes, LocalPlan* plan) {
  for (const ObjectSize& size : sizes) {
    if (size.item >= plan->objects.size()) {
      return DataLoss("the size of a value that the plan does not have");
    }
    plan->objects[size.item].bytes = size.bytes;
  }
  return Status::Ok();
}

void RankPlans::Add(std::shared_ptr<const SpecTable> specs, Bytes shares) {
  const auto number = static_cast<std::uint32_t>(tables_.size());
  const auto [at, is_new] = numbers_.emplace(specs.get(), number);
  if (is_new) {
    tables_.push_back(std::move(specs));
  }
  ranks_.push_back({at->second, std::move(shares), {}});
}

void RankPlans::SetAssignments(const std::vector<std::shared_ptr<const Bytes>>& ranks) {
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    ranks_[rank - 1].assignment = ranks[rank];
  }
}

std::size_t RankPlans::bytes() const {
  constexpr std::size_t kSpecBytes = 128;  // Beside its encoding, which has the name.
  std::size_t bytes = 0;
  for (const auto& table : tables_) {
    bytes += table->Encode().size() + table->size() * kSpecBytes;
  }
  std::set<const Bytes*> assignments;
  for (const Rank& rank : ranks_) {
    const bool is_new = assignments.insert(rank.assignment.get()).second;
    bytes += sizeof(Rank) + rank.shares.size() + (is_new ? rank.assignment->size() : 0);
  }
  return bytes;
}

std::uint64_t RankPlans::ObjectsOf(std::size_t rank) const {
  return ByteReader(ranks_[rank - 1].shares).Varint();  // They begin with the values.
}

Result<LocalPlan> RankPlans::PlanOf(std::size_t rank) const {
  const Rank& one = ranks_[rank - 1];
  auto plan = DecodeShares(one.shares, *tables_[one.table]);
  return plan.ok() ? std::move(plan) : AnnotatePlan(plan.status(), rank);
}

Result<RankAssignment> RankPlans::AssignmentOf(std::size_t rank) const {
  auto assignment = DecodeAssignment(*ranks_[rank - 1].assignment);
  return assignment.ok() ? std::move(assignment) : AnnotatePlan(assignment.status(), rank);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, RankPlans::Rank>& rank) {
  Bytes assignment;
  if constexpr (Archive::kWrites) {
    assignment = *rank.assignment;
  }
  archive(rank.table, rank.shares, assignment);
  if constexpr (!Archive::kWrites) {
    rank.assignment = std::make_shared<const Bytes>(std::move(assignment));
  }
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, RankPlans>& plans) {
  std::vector<Bytes> tables;
  if constexpr (Archive::kWrites) {
    for (const auto& table : plans.tables_) {
      tables.push_back(table->Encode());
    }
  }
  archive(tables, plans.ranks_);
  if constexpr (!Archive::kWrites) {
    archive.Check(
        [&] {
          for (const Bytes& encoded : tables) {
            auto table = SpecTable::Decode(encoded);
            if (!table.ok()) {
              return false;
            }
            plans.tables_.push_back(std::make_shared<const SpecTable>(std::move(*table)));
          }
          for (const RankPlans::Rank& rank : plans.ranks_) {
            if (rank.table >= plans.tables_.size()) {
              return false;
            }
          }
          return true;
        },
        "plans that are malformed");
  }
}

template void Fields(FieldWriter& archive, const RankPlans& plans);
template void Fields(FieldReader& archive, RankPlans& plans);

}  // namespace varve
