#include "save/plans/gathered_plans.h"

#include <algorithm>
#include <utility>

#include "base/fields.h"
#include "base/guarded.h"
#include "plan/fields.h"

namespace varve {

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, ReplicaSums>& sums) {
  archive(sums.groups, sums.differing);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, PlanAsBefore>& before) {
  archive(before.agreement, before.sums, before.sizes);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, PlanHead>& head) {
  archive(head.tensors, head.structure, head.before, head.shares);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, PlanParts>& parts) {
  archive(parts.head, parts.shares, parts.tensors, parts.structure);
}

template void Fields(FieldWriter& archive, const PlanHead& head);
template void Fields(FieldWriter& archive, const PlanParts& parts);

Status GatheredPlans::TakeHeads(const std::vector<std::string>& heads) {
  heads_.resize(1);
  heads_.reserve(heads.size());
  for (std::size_t rank = 1; rank < heads.size(); ++rank) {
    auto head = DecodeFields<PlanHead>(heads[rank]);
    if (!head.ok()) {
      return AnnotatePlan(head.status(), rank);
    }
    heads_.push_back({DigestOfPart(heads[rank]), std::move(*head)});
  }
  return Status::Ok();
}

namespace {

/// Returns null where the rank has not named the agreement.
const PlanAsBefore* FindBefore(const PlanHead& head, const Agreement& agreement) {
  const auto found =
      std::find_if(head.before.begin(), head.before.end(),
                   [&](const PlanAsBefore& one) { return one.agreement == agreement.id; });
  return found == head.before.end() ? nullptr : &*found;
}

}  // namespace

bool GatheredPlans::AreAsIn(const Agreement& agreement, const LocalPlan& own) const {
  std::vector<ReplicaSums> sums;
  sums.reserve(heads_.size());
  sums.push_back(SumsOf(own, agreement.compared));
  for (std::size_t rank = 1; rank < heads_.size(); ++rank) {
    const PlanAsBefore* const before = FindBefore(heads_[rank].message, agreement);
    if (before == nullptr) {
      return false;
    }
    sums.push_back(before->sums);
  }
  return agreement.pattern.IsThatOf(sums);
}

Result<std::map<std::uint32_t, std::vector<ObjectSize>>> GatheredPlans::SizesIn(
    const Agreement& agreement) const {
  std::map<std::uint32_t, std::vector<ObjectSize>> sizes;
  for (std::size_t rank = 1; rank < heads_.size(); ++rank) {
    const std::vector<ObjectSize>& changed = FindBefore(heads_[rank].message, agreement)->sizes;
    const std::uint64_t objects = agreement.others->ObjectsOf(rank);
    if (!MayChange(changed) ||
        std::any_of(changed.begin(), changed.end(),
                    [&](const ObjectSize& size) { return size.item >= objects; })) {
      return AnnotatePlan(DataLoss("sizes of values that the plan does not have"), rank);
    }
    if (!changed.empty()) {
      sizes.emplace(static_cast<std::uint32_t>(rank), changed);
    }
  }
  return sizes;
}

bool GatheredPlans::AnyBefore() const {
  return std::any_of(heads_.begin(), heads_.end(),
                     [](const Head& head) { return !head.message.before.empty(); });
}

void GatheredPlans::TakeKnown(const LocalPlan& own, KnownParts& known) {
  if (heads_.size() < 2) {
    return;
  }
  auto specs = std::make_shared<const SpecTable>(own);
  heads_[0].message.tensors = DigestOfPart(specs->Encode());
  heads_[0].message.structure = DigestOfPart(own.structure);
  tensors_.emplace(heads_[0].message.tensors, std::move(specs));
  structures_.emplace(heads_[0].message.structure, std::string());  // Its own plan has it.
  const auto none = std::make_shared<const SpecTable>();
  tensors_.emplace(DigestOfPart(none->Encode()), none);
  structures_.emplace(DigestOfPart({}), std::string());
  for (std::size_t rank = 0; rank < heads_.size(); ++rank) {
    first_with_tensors_.emplace(heads_[rank].message.tensors, rank);
    first_with_structure_.emplace(heads_[rank].message.structure, rank);
  }
  for (const auto& [digest, rank] : first_with_tensors_) {
    const auto part = tensors_.contains(digest) ? std::nullopt : known.Find(digest);
    if (part) {
      auto table = SpecTable::Decode(*part);
      if (table.ok()) {  // Else the rank announced another kind of part, and is asked.
        tensors_.emplace(digest, std::make_shared<const SpecTable>(std::move(*table)));
      }
    }
  }
  for (const auto& [digest, rank] : first_with_structure_) {
    auto part = structures_.contains(digest) ? std::nullopt : known.Find(digest);
    if (part) {
      structures_.emplace(digest, std::move(*part));
    }
  }
}

namespace {

/// Keeps a part for later saves. Without memory it is asked for again.
void Keep(const Hash128& digest, const std::string& part, KnownParts* known) {
  (void)Guarded([&] { known->Keep(digest, part); });
}

}  // namespace

std::string GatheredPlans::Asked(std::size_t rank) const {
  const PlanHead& head = heads_[rank].message;
  char asked = wants_fingerprints_   ? kAskedForFingerprints
               : head.before.empty() ? char{0}
                                     : kAskedForShares;
  if (!tensors_.contains(head.tensors) && first_with_tensors_.at(head.tensors) == rank) {
    asked |= kAskedForTensors;
  }
  if (!structures_.contains(head.structure) && first_with_structure_.at(head.structure) == rank) {
    asked |= kAskedForStructure;
  }
  return std::string(1, asked);
}

std::vector<std::string> GatheredPlans::Missing() const {
  std::vector<std::string> asked(1, std::string(1, '\0'));
  asked.reserve(heads_.size());
  bool any = false;
  for (std::size_t rank = 1; rank < heads_.size(); ++rank) {
    asked.push_back(Asked(rank));
    any = any || asked.back().front() != 0;
  }
  return any ? asked : std::vector<std::string>();
}

Status GatheredPlans::TakeParts(const std::vector<std::string>& parts, KnownParts& known) {
  for (std::size_t rank = 1; rank < parts.size() && rank < heads_.size(); ++rank) {
    const char asked = Asked(rank)[0];
    PlanHead& head = heads_[rank].message;
    auto sent = DecodeFields<PlanParts>(parts[rank]);
    if (!sent.ok() || sent->head != heads_[rank].digest) {
      return FailedPrecondition("rank " + std::to_string(rank) +
                                " has sent no part of its plan: it makes another call. All ranks "
                                "must make the same calls in the same order");
    }
    if (((asked & kAskedForTensors) != 0 && DigestOfPart(sent->tensors) != head.tensors) ||
        ((asked & kAskedForStructure) != 0 && DigestOfPart(sent->structure) != head.structure)) {
      return AnnotatePlan(DataLoss("the rank has sent another part than it announced"), rank);
    }
    if ((asked & kAskedForTensors) != 0) {
      auto table = SpecTable::Decode(sent->tensors);
      if (!table.ok()) {
        return AnnotatePlan(table.status(), rank);
      }
      tensors_.emplace(head.tensors, std::make_shared<const SpecTable>(std::move(*table)));
      Keep(head.tensors, sent->tensors, &known);
    }
    if ((asked & kAskedForStructure) != 0) {
      Keep(head.structure, sent->structure, &known);
      structures_.emplace(head.structure, std::move(sent->structure));
    }
    if ((asked & (kAskedForShares | kAskedForFingerprints)) != 0) {
      head.shares = std::move(sent->shares);
      head.before.clear();
    }
  }
  return Status::Ok();
}

GatheredPlans::Taken GatheredPlans::Take() {
  Taken taken;
  if (const auto own = tensors_.find(heads_[0].message.tensors); own != tensors_.end()) {
    taken.own_table = own->second;
  }
  taken.structures.resize(heads_.size());
  for (std::size_t rank = 1; rank < heads_.size(); ++rank) {
    PlanHead& head = heads_[rank].message;
    taken.plans.Add(tensors_.at(head.tensors), std::move(head.shares));
    if (first_with_structure_.at(head.structure) == rank) {
      taken.structures[rank] = structures_.at(head.structure);
    }
  }
  return taken;
}

}  // namespace varve
