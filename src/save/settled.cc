#include "save/settled.h"

#include <cstddef>
#include <utility>

#include "plan/fields.h"
#include "plan/spec_table.h"
#include "save/written_format.h"

namespace varve {

Status SettledSave::ApplySizesOf(std::uint32_t rank, LocalPlan* plan) const {
  const auto changed = sizes.find(rank);
  return changed == sizes.end() ? Status::Ok() : ApplySizes(changed->second, plan);
}

Status SettledSave::VisitRank(std::uint32_t rank, const Visit& visit) const {
  if (rank == 0) {
    return visit(0, plan(), assignment());
  }
  VARVE_ASSIGN_OR_RETURN(LocalPlan theirs, others->PlanOf(rank));
  VARVE_ASSIGN_OR_RETURN(const RankAssignment writes, others->AssignmentOf(rank));
  VARVE_RETURN_IF_ERROR(ApplySizesOf(rank, &theirs));
  return visit(rank, theirs, writes);
}

Status SettledSave::ForEachRank(const Visit& visit) const {
  for (std::uint32_t rank = 0; rank < others->world_size(); ++rank) {
    VARVE_RETURN_IF_ERROR(VisitRank(rank, visit));
  }
  return Status::Ok();
}

Result<std::pair<std::vector<LocalPlan>, SettledPlan>> SettledSave::OfAllRanks() const {
  std::pair<std::vector<LocalPlan>, SettledPlan> all;
  VARVE_RETURN_IF_ERROR(ForEachRank(
      [&](std::uint32_t /*rank*/, const LocalPlan& plan, const RankAssignment& assignment) {
        all.first.push_back(plan);
        all.second.ranks.push_back(assignment);
        return Status::Ok();
      }));
  all.second.differing_objects = settled.differing_objects;
  all.second.differing_tensors = settled.differing_tensors;
  return all;
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, SettledPlan>& plan) {
  archive(plan.ranks, plan.differing_objects, plan.differing_tensors);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, SideFile>& file) {
  archive(file.name, file.content);
}

/// This rank's plan.
template <class Archive>
void OwnPlanFields(Archive& archive, FieldsOf<Archive, std::vector<LocalPlan>>& plans) {
  Bytes tensors;
  Bytes shares;
  Bytes structure;
  if constexpr (Archive::kWrites) {
    const SpecTable specs(plans[0]);
    tensors = specs.Encode();
    shares = EncodeShares(plans[0], specs);
    structure = plans[0].structure;
  }
  archive(tensors, shares, structure);
  if constexpr (!Archive::kWrites) {
    archive.Check(
        [&] {
          const auto table = SpecTable::Decode(tensors);
          auto plan = table.ok() ? DecodeShares(shares, *table) : table.status();
          if (plan.ok()) {
            plan->structure = std::move(structure);
            plans.push_back(std::move(*plan));
          }
          return plan.ok();
        },
        "a plan that is malformed");
  }
}

/// The plans of the others, where this rank has them.
template <class Archive>
void OtherPlanFields(Archive& archive,
                     FieldsOf<Archive, std::shared_ptr<const RankPlans>>& others) {
  bool has = others != nullptr;
  archive(has);
  if constexpr (Archive::kWrites) {
    if (has) {
      archive(*others);
    }
  } else if (has) {
    auto plans = std::make_shared<RankPlans>();
    archive(*plans);
    others = std::move(plans);
  }
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, SettledSave>& save) {
  archive.Enum(save.format, Format::kVarve, Format::kHfai, "an unknown format");
  archive.Check([&] { return FindWrittenFormat(save.format) != nullptr; },
                "a format that is not written");
  archive(save.identity, save.placement, save.layout, save.shard_size, save.one_writer, save.joins);
  OwnPlanFields(archive, save.plans);
  OtherPlanFields(archive, save.others);
  archive(save.sizes, save.settled, save.side_files);
  archive.Check(
      [&] {
        const bool coordinates = save.identity.coordinated && save.identity.rank == 0;
        return save.settled.ranks.size() == 1 && coordinates == (save.others != nullptr) &&
               (!coordinates || save.others->world_size() == save.identity.world_size);
      },
      "plans of other ranks than the save has");
}

template void Fields(FieldWriter& archive, const SettledSave& save);
template void Fields(FieldReader& archive, SettledSave& save);

}  // namespace varve
