// A damaged checkpoint is taken out of the way.
//  1. Lock its name: a live save is about to replace the damage itself.
//  2. A displaced checkpoint gets its name back first, so that the name stands for it alone.
//  3. Write the reason into the directory, durably. A crash here leaves a checkpoint that is as
//     damaged as before, with one more file.
//  4. Rename the directory and sync its parent: from then on no load finds it.

#include "catalogue/names.h"
#include "catalogue/own_names.h"
#include "publish/claim.h"
#include "publish/replaced.h"
#include "publish/save_id.h"
#include "varve/manage.h"

namespace varve {

Result<std::string> QuarantineCheckpoint(const std::string& given, std::string_view reason,
                                         Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string path, ResolvePath(given, storage));
  const std::string what = "quarantine " + path;
  VARVE_RETURN_IF_ERROR(CheckCheckpointName(path).Annotate(what));
  if (SymbolicLinks* const links = storage.extras().symbolic_links;
      links != nullptr && links->ReadLink(path).ok()) {
    return FailedPrecondition(what + ": it is a symbolic link, which a user has made");
  }
  const auto lock = LockName(storage, path);  // Step 1.
  if (lock.status().code() == StatusCode::kFailedPrecondition) {
    return FailedPrecondition(what + ": a save of it is under way");
  }
  if (!lock.ok() && lock.status().code() != StatusCode::kUnimplemented) {
    return lock.status().Annotate(what);
  }
  VARVE_RETURN_IF_ERROR(RecoverDisplaced(storage, path).Annotate(what));  // Step 2.
  if (!HoldsCheckpoint(storage, path)) {
    return NotFound(what + ": there is no checkpoint of that name");
  }
  VARVE_RETURN_IF_ERROR(WriteWholeFile(storage, JoinPath(path, kQuarantineReasonName),
                                       std::string(reason) + "\n", false)
                            .Annotate(what));  // Step 3.
  VARVE_RETURN_IF_ERROR(storage.SyncDirectory(path).Annotate(what));
  VARVE_ASSIGN_OR_RETURN(const SaveId id, RandomSaveId());
  const std::string hidden = QuarantinedPath(path, id);
  VARVE_RETURN_IF_ERROR(
      storage.Rename(path, hidden, RenameMode::kNoReplace).Annotate(what));  // Step 4.
  VARVE_RETURN_IF_ERROR(storage.SyncDirectory(ParentPath(path)).Annotate(what));
  return hidden;
}

}  // namespace varve
