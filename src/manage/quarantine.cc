// A damaged checkpoint is taken out of the way.
//  1. Lock its name: a live save is about to replace the damage itself.
//  2. A displaced checkpoint gets its name back first, so that the name stands for it alone.
//  3. Write the reason into the directory, durably. A crash here leaves a checkpoint that is as
//     damaged as before, with one more file.
//  4. Rename the directory and sync its parent: from then on no load finds it.
//
// Where names cannot be changed (record_commit.cc) the record moves, which is what readers find,
// and the data stay where they are:
//  1. Remove the records below the newest: without it a reader would take one of them, whose data
//  an
//     overwrite has removed, or was about to.
//  2. Write the reason, and the record under the name of one in quarantine. A crash here leaves a
//     checkpoint that is as damaged as before; an overwrite that comes then removes both.
//  3. Take a pin away, which would keep later saves from the name. The reason tells of it.
//  4. Remove the record. From then on no load finds it, and `gc` and later saves of the name leave
//     its data alone. A save that was published meanwhile has a higher number and stays.

#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/own_names.h"
#include "format/commit_record.h"
#include "manage/pin.h"
#include "publish/claim.h"
#include "publish/records.h"
#include "publish/replaced.h"
#include "publish/save_id.h"
#include "varve/manage.h"

namespace varve {
namespace {

constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{64} << 10;

Result<std::string> QuarantineByRecord(Storage& storage, const std::string& path,
                                       std::string_view reason) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(path));
  const std::uint64_t newest = NewestRecord(entries);
  if (newest == 0) {
    return HoldsCheckpoint(storage, path)
               ? FailedPrecondition(
                     "only a checkpoint that Varve has saved there can be moved out "
                     "of the way")
               : NotFound("there is no checkpoint of that name");
  }
  const std::string record = JoinPath(path, RecordName(newest));
  VARVE_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(storage, record, kMaxRecordBytes));
  VARVE_ASSIGN_OR_RETURN(SaveId id, RandomSaveId());
  if (const auto decoded = DecodeCommitRecord(text); decoded.ok()) {
    id = decoded->save_id;
  }
  VARVE_RETURN_IF_ERROR(RemoveRecordsBelow(storage, path, newest));  // Step 1.
  std::string why(reason);
  if (const auto pin = ReadPin(storage, path)) {
    why += " (it was pinned";
    why += pin->empty() ? ")" : ": " + *pin + ")";
  }
  const std::string set_aside = JoinPath(path, QuarantinedRecordName(id));
  VARVE_RETURN_IF_ERROR(WriteWholeFile(storage, JoinPath(path, QuarantineReasonName(id)),
                                       why + "\n", false));  // Step 2.
  VARVE_RETURN_IF_ERROR(WriteWholeFile(storage, set_aside, text, false));
  VARVE_RETURN_IF_ERROR(storage.Remove(JoinPath(path, kPinName)));  // Step 3.
  VARVE_RETURN_IF_ERROR(storage.Remove(record));                    // Step 4.
  return set_aside;
}

}  // namespace

Result<std::string> QuarantineCheckpoint(const std::string& given, std::string_view reason,
                                         Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string path, ResolveTarget(given, storage));
  const std::string what = "quarantine " + path;
  VARVE_RETURN_IF_ERROR(CheckCheckpointName(path).Annotate(what));
  if (SymbolicLinks* const links = storage.extras().symbolic_links;
      links != nullptr && links->ReadLink(path).ok()) {
    return FailedPrecondition(what + ": it is a symbolic link, which a user has made");
  }
  if (PublishesByRecord(storage, path)) {
    auto set_aside = QuarantineByRecord(storage, path, reason);
    return set_aside.ok() ? set_aside : set_aside.status().Annotate(what);
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
