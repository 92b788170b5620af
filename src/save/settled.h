/// One rank's part in a save once the ranks have settled who writes what, as plain data. With a
/// copy of the tensors it is all that is needed to write the save, by whatever process.
#pragma once

#include <vector>

#include "base/bytes.h"
#include "base/fields.h"
#include "plan/file_plan.h"
#include "plan/save_plan.h"
#include "varve/checkpoint.h"
#include "varve/metadata.h"

namespace varve {

struct SettledSave {
  Format format = Format::kVarve;
  FileIdentity identity;
  LocalPlan plan;
  RankAssignment assignment;
  Bytes layout;  ///< FileWork::layout.
  // On the coordinator of a coordinated save, of all ranks:
  std::vector<LocalPlan> plans;
  SettledPlan settled;
  std::vector<SideFile> side_files;
};

/// For processes of one version of Varve on one machine; never stored.
template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, SettledSave>& save);

}  // namespace varve
