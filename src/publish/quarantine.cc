// A damaged checkpoint is taken out of the way.
//  1. Lock its name: a live save is about to replace the damage itself.
//  2. A displaced checkpoint gets its name back first, so that the name stands for it alone.
//  3. Write the reason into the directory, durably. A crash here leaves a checkpoint that is as
//     damaged as before, with one more file.
//  4. Rename the directory and sync its parent: from then on no load finds it.
//
// Where names cannot be changed (index_commit.cc) the record moves, which is what readers find,
// and the data stay where they are:
//  1. Remove the records below the newest: without it a reader would take one of them, whose data
//     an overwrite has removed, or was about to.
//  2. Write the reason, and the record under the name of one in quarantine. A crash here leaves a
//     checkpoint that is as damaged as before; an overwrite that comes then removes both.
//  3. Take a pin away, which would keep later saves from the name. The reason tells of it.
//  4. Remove the record. From then on no load finds it, and `gc` and later saves of the name leave
//     its data alone. A save that was published meanwhile has a higher number and stays.

#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/own_names.h"
#include "catalogue/remains.h"
#include "format/commit_record.h"
#include "publish/claim.h"
#include "publish/families.h"
#include "publish/records.h"
#include "publish/replaced.h"
#include "publish/save_id.h"

namespace varve {

Result<std::string> ObjectPublisher::Quarantine(const std::string& path, std::string_view reason) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage_.List(path));
  const std::uint64_t newest = NewestRecord(entries);
  if (newest == 0) {
    return HoldsCheckpoint(storage_, path)
               ? FailedPrecondition(
                     "only a checkpoint that Varve has saved there can be moved out "
                     "of the way")
               : NotFound("there is no checkpoint of that name");
  }
  const std::string record = JoinPath(path, RecordName(newest));
  VARVE_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(storage_, record, kMaxRecordBytes));
  VARVE_ASSIGN_OR_RETURN(SaveId id, RandomSaveId());
  if (const auto decoded = DecodeCommitRecord(text); decoded.ok()) {
    id = decoded->save_id;
  }
  VARVE_RETURN_IF_ERROR(RemoveRecordsBelow(storage_, path, newest));  // Step 1.
  std::string why(reason);
  if (const auto pin = ReadPin(storage_, path)) {
    why += " (it was pinned";
    why += pin->empty() ? ")" : ": " + *pin + ")";
  }
  const std::string set_aside = JoinPath(path, QuarantinedRecordName(id));
  VARVE_RETURN_IF_ERROR(WriteWholeFile(storage_, JoinPath(path, QuarantineReasonName(id)),
                                       why + "\n", false));  // Step 2.
  VARVE_RETURN_IF_ERROR(WriteWholeFile(storage_, set_aside, text, false));
  VARVE_RETURN_IF_ERROR(storage_.Remove(JoinPath(path, kPinName)));  // Step 3.
  VARVE_RETURN_IF_ERROR(storage_.Remove(record));                    // Step 4.
  return set_aside;
}

Result<std::string> FileSystemPublisher::Quarantine(const std::string& path,
                                                    std::string_view reason) {
  VARVE_ASSIGN_OR_RETURN(const auto lock, LockUnlessSaved(storage_, path));  // Step 1.
  VARVE_RETURN_IF_ERROR(RecoverDisplaced(storage_, path));                   // Step 2.
  if (!HoldsCheckpoint(storage_, path) && !RemainsOfCheckpoint(storage_, path)) {
    return NotFound("there is no checkpoint of that name");
  }
  VARVE_RETURN_IF_ERROR(WriteWholeFile(storage_, JoinPath(path, kQuarantineReasonName),
                                       std::string(reason) + "\n", false));  // Step 3.
  VARVE_RETURN_IF_ERROR(storage_.SyncDirectory(path));
  VARVE_ASSIGN_OR_RETURN(const SaveId id, RandomSaveId());
  const std::string hidden = QuarantinedPath(path, id);
  VARVE_RETURN_IF_ERROR(storage_.Rename(path, hidden, RenameMode::kNoReplace));  // Step 4.
  VARVE_RETURN_IF_ERROR(storage_.SyncDirectory(ParentPath(path)));
  return hidden;
}

}  // namespace varve
