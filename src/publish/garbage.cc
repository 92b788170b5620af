#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "base/stop.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/own_names.h"
#include "catalogue/unfinished.h"
#include "publish/claim.h"
#include "publish/families.h"
#include "publish/replaced.h"
#include "publish/save_id.h"
#include "varve/catalogue.h"
#include "varve/storage.h"

namespace varve {
namespace {

/// No lock shows whether ranks still use a channel directory, or OLMo's, or whether a pin is being
/// made. No rank waits for an answer and no process writes a file for as long as this.
constexpr std::int64_t kUnusedNs = std::int64_t{24} * 3600 * 1'000'000'000;

bool IsRecent(std::int64_t modified_ns) {
  return static_cast<std::int64_t>(UnixTimeNs()) - modified_ns < kUnusedNs;
}

std::uint64_t TreeBytes(Storage& storage, const std::string& path, const DirectoryEntry& entry) {
  if (entry.is_link) {
    return 0;  // The link's target stays.
  }
  if (!entry.is_directory) {
    return entry.size;
  }
  std::uint64_t bytes = 0;
  if (const auto files = storage.List(path); files.ok()) {
    for (const DirectoryEntry& file : *files) {
      bytes += TreeBytes(storage, JoinPath(path, file.name), file);
    }
  }
  return bytes;
}

bool IsPartOfIndex(std::string_view name) {
  const auto is_part_of = [&](std::string_view file) {
    return name == BaseName(PartPath("", file));
  };
  return is_part_of(kManifestName) || is_part_of(kCommitRecordName);
}

class Collector {
 public:
  Collector(Storage& storage, DryRun dry_run, const std::stop_token& stop)
      : storage_(storage), dry_run_(dry_run == DryRun::kYes), stop_(stop) {}

  /// Removes what dead saves left beside checkpoints.
  Status Siblings(const std::string& directory, const std::vector<DirectoryEntry>& entries) {
    VARVE_RETURN_IF_ERROR(PartsOfFiles(directory, entries));
    for (const DirectoryEntry& entry : entries) {
      const auto stale = ParseStaleName(entry.name);
      if (!stale || stale->kind == StaleKind::kPart) {
        continue;
      }
      VARVE_RETURN_IF_ERROR(CheckStop(stop_));
      const std::string path = JoinPath(directory, entry.name);
      if (stale->kind == StaleKind::kChannel && IsRecent(entry.modified_ns)) {
        report_.kept.push_back(path);
        continue;
      }
      const std::string target = JoinPath(directory, stale->target);
      const auto lock = LockNameToRemove(storage_, target);
      std::unique_ptr<StorageLock> old_lock;  // Of a save by an older version.
      bool free = lock.ok();
      if (OldLockPath(target) != LockPath(target) &&
          FindEntry(entries, BaseName(OldLockPath(target))) != nullptr) {
        auto locked = storage_.Lock(OldLockPath(target));
        free = free && locked.ok();
        old_lock = locked.ok() ? std::move(*locked) : nullptr;
      }
      if (!free) {
        // A live save holds it, or the file system has no locks and does not show it.
        report_.kept.push_back(path);
        continue;
      }
      if (stale->kind == StaleKind::kDisplaced && !HoldsCheckpoint(storage_, target)) {
        VARVE_RETURN_IF_ERROR(Recover(path, target));
      } else {
        const bool replaced =
            stale->kind == StaleKind::kDisplaced || stale->kind == StaleKind::kStaging;
        VARVE_RETURN_IF_ERROR(Remove(path, entry, replaced ? target : ""));
      }
    }
    return Status::Ok();
  }

  /// Removes what a dead save of OLMo left under `NAME-tmp`: only a directory of the names that
  /// OLMo gives, all of whose entries have such names too, and that nothing has changed for a day.
  /// One with OLMo's mark of a whole checkpoint may be the only copy: it stays.
  Status Unfinished(const std::string& directory, const std::vector<DirectoryEntry>& entries) {
    for (const DirectoryEntry& entry : entries) {
      if (!entry.is_directory || entry.is_link || !UnfinishedTarget(entry.name)) {
        continue;
      }
      VARVE_RETURN_IF_ERROR(CheckStop(stop_));
      const std::string path = JoinPath(directory, entry.name);
      const auto found = ReadUnfinished(storage_, path);
      if (!found || found->has_mark) {
        continue;
      }
      if (IsRecent(std::max(entry.modified_ns, found->modified_ns))) {
        report_.kept.push_back(path);
        continue;
      }
      report_.removed.push_back(path);
      report_.bytes += found->bytes;
      VARVE_RETURN_IF_ERROR(dry_run_ ? Status::Ok() : RemoveUnfinished(path, *found));
    }
    return Status::Ok();
  }

  /// Removes what dead rank-local saves and repairs left inside a checkpoint directory.
  Status Parts(const std::string& directory) {
    const auto entries = storage_.List(directory);
    if (!entries.ok()) {
      return Status::Ok();
    }
    for (const DirectoryEntry& entry : *entries) {
      VARVE_RETURN_IF_ERROR(CheckStop(stop_));
      if (const auto rank = PartRank(entry.name)) {
        // The rank's lock shows whether the writer lives.
        const std::string path = JoinPath(directory, entry.name);
        if (const auto lock = storage_.Lock(RankLockPath(directory, *rank)); !lock.ok()) {
          report_.kept.push_back(path);
        } else {
          VARVE_RETURN_IF_ERROR(Remove(path, entry));
        }
      } else if (IsPartOfIndex(entry.name)) {  // A repair has the lock of the name.
        const std::string path = JoinPath(directory, entry.name);
        if (const auto lock = LockName(storage_, directory); !lock.ok()) {
          report_.kept.push_back(path);
        } else {
          VARVE_RETURN_IF_ERROR(Remove(path, entry));
        }
      } else if (entry.name == BaseName(PartPath("", kPinName))) {
        // No lock shows whether its writer lives.
        const std::string path = JoinPath(directory, entry.name);
        if (IsRecent(entry.modified_ns)) {
          report_.kept.push_back(path);
        } else {
          VARVE_RETURN_IF_ERROR(Remove(path, entry));
        }
      } else if (IsInnerLock(entry.name)) {
        const std::string path = JoinPath(directory, entry.name);
        if (const auto lock = storage_.Lock(path); lock.ok()) {
          VARVE_RETURN_IF_ERROR(Remove(path, entry));
        }
      }
    }
    return Status::Ok();
  }

  GarbageReport Take() { return std::move(report_); }

 private:
  /// Removes what dead exports and conversions left. The writer of a single file holds a lock
  /// beside it; a part without a lock file belongs to a repair or a rank. Must run before the locks
  /// are removed.
  Status PartsOfFiles(const std::string& directory, const std::vector<DirectoryEntry>& entries) {
    for (const DirectoryEntry& entry : entries) {
      const auto stale = ParseStaleName(entry.name);
      if (!stale || stale->kind != StaleKind::kPart) {
        continue;
      }
      VARVE_RETURN_IF_ERROR(CheckStop(stop_));
      const std::string lock_path = LockPath(JoinPath(directory, stale->target));
      const bool has_lock =
          std::any_of(entries.begin(), entries.end(),
                      [&](const DirectoryEntry& e) { return e.name == BaseName(lock_path); });
      if (!has_lock) {
        continue;
      }
      if (const auto lock = storage_.Lock(lock_path); !lock.ok()) {
        report_.kept.push_back(JoinPath(directory, entry.name));
      } else {
        VARVE_RETURN_IF_ERROR(Remove(JoinPath(directory, entry.name), entry));
      }
    }
    return Status::Ok();
  }

  /// Removes the files that were found, and directories only if they are empty then: a file that
  /// came since stays.
  Status RemoveUnfinished(const std::string& path, const varve::Unfinished& found) {
    for (const std::string& file : found.files) {
      VARVE_RETURN_IF_ERROR(CheckStop(stop_));
      VARVE_RETURN_IF_ERROR(storage_.Remove(JoinPath(path, file)));
    }
    std::vector<std::string> folders = found.folders;
    folders.emplace_back();
    for (const std::string& folder : folders) {
      const Status status = RemoveIfEmpty(folder.empty() ? path : JoinPath(path, folder));
      if (status.code() == StatusCode::kAlreadyExists) {
        report_.removed.pop_back();
        report_.conflicts.push_back(path);
        return Status::Ok();
      }
      VARVE_RETURN_IF_ERROR(status);
    }
    return Status::Ok();
  }

  /// Errors: AlreadyExists when the directory holds something.
  Status RemoveIfEmpty(const std::string& path) {
    if (EmptyDirectories* const empty = storage_.extras().empty_directories; empty != nullptr) {
      return empty->RemoveEmpty(path);
    }
    VARVE_ASSIGN_OR_RETURN(const auto entries, storage_.List(path));
    return entries.empty() ? storage_.Remove(path)
                           : Status(StatusCode::kAlreadyExists, path + " is not empty");
  }

  Status Recover(const std::string& displaced, const std::string& target) {
    if (const auto entries = storage_.List(target); entries.ok() && !entries->empty()) {
      report_.kept.push_back(displaced);  // The name holds no checkpoint, but a user's files.
      return Status::Ok();
    }
    report_.recovered.push_back(target);
    return dry_run_ ? Status::Ok() : RecoverDisplaced(storage_, target);
  }

  /// Removes `path`. `target` is the checkpoint to which the user's files in it are moved.
  Status Remove(const std::string& path, const DirectoryEntry& entry,
                const std::string& target = "") {
    report_.removed.push_back(path);
    report_.bytes += TreeBytes(storage_, path, entry);
    if (dry_run_) {
      return Status::Ok();
    }
    // A dead save may have published without syncing: a power cut must not give a checkpoint's
    // name back to a directory that is half removed.
    if (std::string directory = ParentPath(path); directory != synced_) {
      VARVE_RETURN_IF_ERROR(storage_.SyncDirectory(directory));
      synced_ = std::move(directory);
    }
    if (target.empty() || entry.is_link) {
      return entry.is_directory && !entry.is_link ? RemoveTree(storage_, path, stop_)
                                                  : storage_.Remove(path);
    }
    const std::size_t conflicts = report_.conflicts.size();
    VARVE_RETURN_IF_ERROR(RemoveStale(storage_, path, target, &report_.conflicts, stop_));
    if (report_.conflicts.size() > conflicts) {
      report_.removed.pop_back();  // Not all of it.
    }
    return Status::Ok();
  }

  Storage& storage_;
  bool dry_run_;
  const std::stop_token& stop_;
  std::string synced_;  ///< The directory synced last.
  GarbageReport report_;
};

}  // namespace

Result<GarbageReport> FileSystemPublisher::Collect(const std::string& directory, DryRun dry_run,
                                                   const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage_.List(directory));
  Collector collector(storage_, dry_run, stop);
  VARVE_RETURN_IF_ERROR(collector.Siblings(directory, entries));
  VARVE_RETURN_IF_ERROR(collector.Unfinished(directory, entries));
  VARVE_RETURN_IF_ERROR(collector.Parts(directory));
  // Again: a displaced checkpoint may have got its name back, with what is in it.
  VARVE_ASSIGN_OR_RETURN(const auto now, storage_.List(directory));
  for (const DirectoryEntry& entry : now) {
    // A link's target is not in this directory.
    if (entry.is_directory && !entry.is_link && !ParseStaleName(entry.name)) {
      VARVE_RETURN_IF_ERROR(collector.Parts(JoinPath(directory, entry.name)));
    }
  }
  return collector.Take();
}

Result<GarbageReport> CollectGarbage(const std::string& path, DryRun dry_run, Storage& storage,
                                     const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const std::string directory, ResolveTarget(path, storage));
  auto report = PublisherOf(storage, directory)->Collect(directory, dry_run, stop);
  if (report.status().code() == StatusCode::kCancelled) {
    return report.status().Annotate("collect garbage in " + directory +
                                    ": what is left is removed by the next call");
  }
  return report;
}

}  // namespace varve
