/// One rank's part in a save once the ranks have settled who writes what, as plain data. With a
/// copy of the tensors it is all that is needed to write the save, by whatever process.
#pragma once

#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "plan/file_plan.h"
#include "plan/save_plan.h"
#include "varve/checkpoint.h"
#include "varve/metadata.h"
#include "varve/status.h"

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
Bytes EncodeSettledSave(const SettledSave& save);
/// Errors: DataLoss.
Result<SettledSave> DecodeSettledSave(std::string_view bytes);

}  // namespace varve
