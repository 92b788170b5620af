// The removal of a checkpoint, on request or on a rule of its run.
//  1. Lock its name, and check that no rank saves into it without coordination: a live save loses
//     nothing. A file system that has no room for the lock file, for it is out of inodes, could
//     else never be given room. There the directory above is locked (flock of the directory), and
//     that no lock file of the name is there shows that no save has the name. A save that makes
//     its lock file later finds the directory locked, and waits for an instant: see step 3.
//  2. A displaced checkpoint gets its name back, so that it is removed and not found again later.
//     A pinned checkpoint stays. A removal by a rule of the run also spares one that is being read:
//     it takes the lock that all readers share for itself, and gives it back when the name is gone.
//     A reader that comes in between finds the lock taken, looks again and finds nothing.
//  3. Look for the lock file once more where the directory above is locked, for on a network file
//     system other hosts do not see that lock: a save that publishes has had its lock file for the
//     whole time that it wrote. Rename the directory to .NAME.varve-removed-<id> and sync PARENT.
//     From then on no checkpoint has this name, whatever happens: no load reads half of one,
//     `repair` does not make a checkpoint of the rest, and `gc` or the next save of the name
//     finishes the removal.
//  4. Remove the directory with all that is in it.

#include "publish/remove.h"

#include <set>

#include "base/stop.h"
#include "catalogue/family.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/own_names.h"
#include "catalogue/read_lock.h"
#include "catalogue/remains.h"
#include "publish/claim.h"
#include "publish/families.h"
#include "publish/other_files.h"
#include "publish/replaced.h"
#include "publish/save_id.h"
#include "varve/catalogue.h"
#include "varve/storage.h"

namespace varve {
namespace {

/// Checks that no uncoordinated rank saves there. Errors: FailedPrecondition when a rank writes its
/// file there.
Status CheckNoRankSaves(Storage& storage, const std::string& path,
                        const std::vector<DirectoryEntry>& entries) {
  for (const DirectoryEntry& entry : entries) {
    if (IsInnerLock(entry.name) && storage.Lock(JoinPath(path, entry.name)).status().code() ==
                                       StatusCode::kFailedPrecondition) {
      return FailedPrecondition("remove " + path + ": a save of it is under way");
    }
  }
  return Status::Ok();
}

Result<std::vector<DirectoryEntry>> ListCheckpointDirectory(Storage& storage,
                                                            const std::string& path) {
  auto entries = storage.List(path);
  if (entries.status().code() == StatusCode::kNotFound) {
    return NotFound("remove " + path + ": there is nothing of that name");
  }
  if (!entries.ok() && storage.OpenForRead(path).ok()) {
    return FailedPrecondition("remove " + path +
                              ": it is a file; checkpoints of one file are removed with rm");
  }
  VARVE_RETURN_IF_ERROR(entries.status());
  if (!IsCheckpoint(storage, path, *entries) && !RemainsOfCheckpoint(storage, path)) {
    return FailedPrecondition("remove " + path + ": it is not a checkpoint; nothing was removed");
  }
  return entries;
}

RemovalReport Describe(const Inventory& found, Storage& storage, const std::string& path) {
  RemovalReport report;
  for (const OtherFile& file : found.others) {
    if (!file.is_directory) {
      report.others.push_back(file.name);
      report.bytes += file.is_link ? 0 : file.size;
    }
  }
  for (const OwnFile& file : found.own) {
    const auto opened = storage.OpenForRead(JoinPath(path, file.name));
    report.bytes += opened.ok() ? (*opened)->size() : 0;
  }
  return report;
}

/// Refuses a pinned checkpoint: it was pinned because it is needed.
Status CheckMayBeRemoved(Storage& storage, const std::string& given) {
  VARVE_ASSIGN_OR_RETURN(const std::string path, ResolveTarget(given, storage));
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(path));
  return FindEntry(entries, kPinName) == nullptr
             ? Status::Ok()
             : FailedPrecondition("remove " + path +
                                  ": it is pinned; nothing was removed. `varve unpin` it first");
}

Result<RemovalReport> RemoveNow(const std::string& given, const RemovalTerms& terms,
                                Readers readers, Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(std::string path, ResolveTarget(given, storage));
  while (path.size() > 1 && path.ends_with('/')) {
    path.pop_back();  // With it a link would be its target.
  }
  VARVE_RETURN_IF_ERROR(CheckCheckpointName(path).Annotate("remove"));
  if (!IsRemote(storage, path)) {  // The parent of "s3://bucket" would be a name of the disk.
    path = JoinPath(WithoutParentNames(storage, ParentPath(path)), BaseName(path));
  }
  if (SymbolicLinks* const links = storage.extras().symbolic_links;
      links != nullptr && links->ReadLink(path).ok()) {
    if (!HoldsCheckpoint(storage, path)) {
      return FailedPrecondition("remove " + path +
                                ": it is a symbolic link, and not to a checkpoint; it stays");
    }
    VARVE_RETURN_IF_ERROR(terms.dry_run == DryRun::kYes ? Status::Ok() : storage.Remove(path));
    return RemovalReport{};
  }
  return PublisherOf(storage, path)->Remove(path, terms, readers);
}

}  // namespace

Result<RemovalReport> FileSystemPublisher::Remove(const std::string& path,
                                                  const RemovalTerms& terms, Readers readers) {
  auto lock = LockNameToRemove(storage_, path);  // Step 1.
  if (lock.status().code() == StatusCode::kFailedPrecondition) {
    return FailedPrecondition("remove " + path + ": a save of it is under way");
  }
  // Without one a dry run can still tell, also where this user may not write.
  if (!lock.ok() && lock.status().code() != StatusCode::kUnimplemented &&
      terms.dry_run == DryRun::kNo) {
    return lock.status().code() == StatusCode::kNotFound
               ? NotFound("remove " + path + ": there is nothing of that name")
               : lock.status();
  }
  if (terms.dry_run == DryRun::kNo) {
    VARVE_RETURN_IF_ERROR(RecoverDisplaced(storage_, path));  // Step 2.
  }
  VARVE_ASSIGN_OR_RETURN(const auto entries, ListCheckpointDirectory(storage_, path));
  VARVE_RETURN_IF_ERROR(CheckNoRankSaves(storage_, path, entries));
  VARVE_ASSIGN_OR_RETURN(const Inventory found, TakeInventory(storage_, path));
  RemovalReport report = Describe(found, storage_, path);
  VARVE_RETURN_IF_ERROR(CheckNoneBelow(storage_, path, report.others));
  std::unique_ptr<StorageLock> no_readers;
  if (readers == Readers::kRespect) {
    VARVE_ASSIGN_OR_RETURN(no_readers, LockToRemove(storage_, path));
  }
  VARVE_RETURN_IF_ERROR(terms.still_goes ? terms.still_goes() : Status::Ok());
  if (terms.dry_run == DryRun::kYes) {
    return report;
  }
  VARVE_RETURN_IF_ERROR(CheckStop(terms.stop).Annotate("remove " + path + ": nothing was removed"));
  VARVE_ASSIGN_OR_RETURN(const SaveId id, RandomSaveId());
  const std::string removed = RemovedPath(path, id);
  VARVE_RETURN_IF_ERROR(lock.ok() ? CheckStillLocked(storage_, path, *lock) : Status::Ok());
  VARVE_RETURN_IF_ERROR(storage_.Rename(path, removed, RenameMode::kNoReplace));  // Step 3.
  VARVE_RETURN_IF_ERROR(storage_.SyncDirectory(ParentPath(path)));
  (void)storage_.Remove(UploadNotePath(path));  // There is nothing left to upload.
  no_readers.reset();
  if (lock.ok() && lock->of_directory) {
    lock->lock.reset();  // Saves of other names need not wait for step 4.
  }
  const Status status = RemoveTree(storage_, removed, terms.stop, terms.busy_share);  // Step 4.
  return status.ok() ? Result<RemovalReport>(std::move(report))
                     : status.Annotate("remove " + path + ": it is no checkpoint any more, but " +
                                       removed + " is left for `varve gc`");
}

Status CheckNoneBelow(Storage& storage, const std::string& path,
                      const std::vector<std::string>& others) {
  std::set<std::string> steps;
  for (const std::string& name : others) {
    if (name.ends_with("/" + std::string(kPinName))) {
      std::string text = "remove " + path + ": the directory holds ";
      text += JoinPath(path, ParentPath(name));
      return FailedPrecondition(text +
                                ", which is pinned; nothing was removed. `varve unpin` it first");
    }
    const std::string folder = name.substr(0, name.find('/'));
    if (!IsStepName(BaseName(path)) && folder != name && IsStepName(folder) &&
        HoldsCheckpoint(storage, JoinPath(path, folder))) {
      steps.insert(folder);
    }
  }
  if (steps.empty()) {
    return Status::Ok();
  }
  const std::string more =
      steps.size() == 1 ? "" : " and " + std::to_string(steps.size() - 1) + " more";
  return FailedPrecondition("remove " + path + ": the directory holds other checkpoints, " +
                            *steps.begin() + more +
                            "; nothing was removed. Remove those first, or with `rm` the files "
                            "that do not belong there");
}

Result<RemovalReport> RemoveCheckpoint(const std::string& path, DryRun dry_run, Storage& storage,
                                       const std::stop_token& stop) {
  return RemoveNow(path,
                   {.dry_run = dry_run,
                    .stop = stop,
                    .still_goes = [&] { return CheckMayBeRemoved(storage, path); }},
                   Readers::kIgnore, storage);
}

Result<RemovalReport> RemoveUnlessUsed(const std::string& path, const RemovalTerms& terms,
                                       Storage& storage) {
  return RemoveNow(path, terms, Readers::kRespect, storage);
}

}  // namespace varve
