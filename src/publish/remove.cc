// The removal of a checkpoint on request.
//  1. Lock its name, and check that no rank saves into it without coordination: a live save loses
//  nothing.
//  2. A displaced checkpoint gets its name back, so that it is removed and not found again later.
//  3. Rename the directory to .NAME.varve-removed-<id> and sync PARENT. From then on no checkpoint
//     has this name, whatever happens: no load reads half of one, `repair` does not make a
//     checkpoint of the rest, and `gc` or the next save of the name finishes the removal.
//  4. Remove the directory with all that is in it.

#include "base/stop.h"
#include "catalogue/names.h"
#include "catalogue/own_names.h"
#include "publish/claim.h"
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
  if (!IsCheckpoint(storage, path, *entries)) {
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

}  // namespace

Result<RemovalReport> RemoveCheckpoint(const std::string& given, DryRun dry_run, Storage& storage,
                                       const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const std::string path, ResolvePath(given, storage));
  VARVE_RETURN_IF_ERROR(CheckCheckpointName(path).Annotate("remove"));
  if (SymbolicLinks* const links = storage.extras().symbolic_links;
      links != nullptr && links->ReadLink(path).ok()) {
    VARVE_RETURN_IF_ERROR(dry_run == DryRun::kYes ? Status::Ok() : storage.Remove(path));
    return RemovalReport{};
  }
  const auto lock = LockName(storage, path);  // Step 1.
  if (lock.status().code() == StatusCode::kFailedPrecondition) {
    return FailedPrecondition("remove " + path + ": a save of it is under way");
  }
  if (!lock.ok() && lock.status().code() != StatusCode::kUnimplemented) {
    return lock.status().code() == StatusCode::kNotFound
               ? NotFound("remove " + path + ": there is nothing of that name")
               : lock.status();
  }
  if (dry_run == DryRun::kNo) {
    VARVE_RETURN_IF_ERROR(RecoverDisplaced(storage, path));  // Step 2.
  }
  VARVE_ASSIGN_OR_RETURN(const auto entries, ListCheckpointDirectory(storage, path));
  VARVE_RETURN_IF_ERROR(CheckNoRankSaves(storage, path, entries));
  VARVE_ASSIGN_OR_RETURN(const Inventory found, TakeInventory(storage, path));
  RemovalReport report = Describe(found, storage, path);
  if (dry_run == DryRun::kYes) {
    return report;
  }
  VARVE_RETURN_IF_ERROR(CheckStop(stop).Annotate("remove " + path + ": nothing was removed"));
  VARVE_ASSIGN_OR_RETURN(const SaveId id, RandomSaveId());
  const std::string removed = RemovedPath(path, id);
  VARVE_RETURN_IF_ERROR(storage.Rename(path, removed, RenameMode::kNoReplace));  // Step 3.
  VARVE_RETURN_IF_ERROR(storage.SyncDirectory(ParentPath(path)));
  const Status status = RemoveTree(storage, removed, stop);  // Step 4.
  return status.ok() ? Result<RemovalReport>(std::move(report))
                     : status.Annotate("remove " + path + ": it is no checkpoint any more, but " +
                                       removed + " is left for `varve gc`");
}

Result<std::string> NewestCheckpoint(const std::string& given, Storage& storage,
                                     const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const std::string directory, ResolvePath(given, storage));
  VARVE_ASSIGN_OR_RETURN(const auto entries, ListCheckpoints(directory, storage, stop));
  const auto listed = storage.List(directory);
  const CheckpointEntry* newest = nullptr;
  std::int64_t newest_time = 0;
  for (const CheckpointEntry& entry : entries) {
    if (entry.state != CheckpointState::kWhole && entry.state != CheckpointState::kDisplaced) {
      continue;
    }
    const DirectoryEntry* const there = listed.ok() ? FindEntry(*listed, entry.name) : nullptr;
    if (there == nullptr && entry.state == CheckpointState::kWhole) {
      return directory;  // It is a checkpoint itself.
    }
    const std::int64_t time = there == nullptr ? 0 : there->modified_ns;
    if (newest == nullptr || entry.step > newest->step ||
        (entry.step == newest->step && time > newest_time)) {
      newest = &entry;
      newest_time = time;
    }
  }
  if (newest == nullptr) {
    return NotFound("there is no whole checkpoint in " + directory);
  }
  return JoinPath(directory, newest->name);
}

}  // namespace varve
