#include "save/settled.h"

#include "plan/fields.h"
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

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, SettledSave>& save) {
  archive.Enum(save.format, Format::kVarve, Format::kHfai, "an unknown format");
  archive.Check([&] { return FindWrittenFormat(save.format) != nullptr; },
                "a format that is not written");
  archive(save.identity, save.placement, save.layout, save.shard_size, save.one_writer, save.joins);
  archive(save.plans, save.settled, save.side_files);
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
