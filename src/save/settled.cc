#include "save/settled.h"

#include <cstddef>
#include <utility>

#include "plan/fields.h"
#include "plan/spec_table.h"
#include "save/written_format.h"

namespace varve {

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, SettledPlan>& plan) {
  archive(plan.ranks, plan.differing_objects, plan.differing_tensors);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, SideFile>& file) {
  archive(file.name, file.content);
}

/// Plans, whose tensors are listed once for all of them.
template <class Archive>
void PlanFields(Archive& archive, FieldsOf<Archive, std::vector<LocalPlan>>& plans) {
  SpecTable specs;
  Bytes listed;
  std::vector<Bytes> shares;
  std::vector<Bytes> structures;
  if constexpr (Archive::kWrites) {
    for (const LocalPlan& plan : plans) {
      specs.Add(plan);
    }
    listed = specs.Encode();
    for (const LocalPlan& plan : plans) {
      shares.push_back(EncodeShares(plan, specs));
      structures.push_back(plan.structure);
    }
  }
  archive(listed, shares, structures);
  if constexpr (!Archive::kWrites) {
    archive.Check(
        [&] {
          auto table = SpecTable::Decode(listed);
          for (std::size_t i = 0; table.ok() && i < shares.size(); ++i) {
            auto plan = DecodeShares(shares[i], *table);
            if (!plan.ok() || shares.size() != structures.size()) {
              return false;
            }
            plan->structure = std::move(structures[i]);
            plans.push_back(std::move(*plan));
          }
          return table.ok();
        },
        "plans that are malformed");
  }
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, SettledSave>& save) {
  archive.Enum(save.format, Format::kVarve, Format::kHfai, "an unknown format");
  archive.Check([&] { return FindWrittenFormat(save.format) != nullptr; },
                "a format that is not written");
  archive(save.identity, save.placement, save.layout, save.shard_size, save.one_writer, save.joins);
  PlanFields(archive, save.plans);
  archive(save.settled, save.side_files);
  archive.Check(
      [&] {
        const bool coordinates = save.identity.coordinated && save.identity.rank == 0;
        return save.plans.size() == (coordinates ? save.identity.world_size : 1) &&
               save.settled.ranks.size() == save.plans.size();
      },
      "plans of other ranks than the save has");
}

template void Fields(FieldWriter& archive, const SettledSave& save);
template void Fields(FieldReader& archive, SettledSave& save);

}  // namespace varve
