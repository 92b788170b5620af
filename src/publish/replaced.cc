// The removal of a checkpoint that another one has replaced, without the files that are not part of
// it. The old checkpoint has a hidden name; `directory` is the one that has taken its name.
//  a. A file that `directory` has too, under the same name, loses its old name. Files that were put
//     beside the old checkpoint after the others had been linked (commit.cc, step 7) are moved
//     over, never in place of another. If `directory` has another file of that name, both stay
//     where they are and the conflict is reported.
//  b. Sync the folders that files came to, before the last other name of a file may go.
//     Where names alone do not tell the format when half of them are gone (OLMo's layouts), note
//     it: .varve-replaced.FORMAT is durable before the first file goes and the last file to go.
//  c. Remove the files that only the index names, and sync: after a crash the index still tells.
//  d. Remove the rest of the checkpoint, by the names that its format gives. The index stays if
//     there was a conflict: the next attempt learns from it what the checkpoint's names are.
//  e. Remove the folders and the directory if they are empty now. A file that came meanwhile stays.
// After a crash the next save of the name, or `varve gc`, starts at a. again.
//
// The staging directory of a save that died is removed in the same way: it differs from a replaced
// checkpoint only in what it holds. One with the mark .varve-staging is removed as a whole: the
// save has put all of it there, and each file of the user's has a name elsewhere.

#include "publish/replaced.h"

#include <set>
#include <utility>

#include "base/stop.h"
#include "base/time_source.h"
#include "catalogue/names.h"
#include "catalogue/own_names.h"
#include "publish/other_files.h"

namespace varve {
namespace {

class Removal {
 public:
  Removal(Storage& storage, const std::string& replaced, const std::string& directory,
          std::vector<std::string>* conflicts, const std::stop_token& stop)
      : storage_(storage),
        replaced_(replaced),
        directory_(directory),
        conflicts_(conflicts),
        stop_(stop) {}

  Status Run() {
    const auto found = TakeInventory(storage_, replaced_);
    if (found.status().code() == StatusCode::kNotFound) {
      return Status::Ok();
    }
    VARVE_RETURN_IF_ERROR(found.status());
    VARVE_RETURN_IF_ERROR(MoveOver(found->others));
    const std::string note =
        found->note_of_removal.empty() ? "" : JoinPath(replaced_, found->note_of_removal);
    VARVE_RETURN_IF_ERROR(Note(note));
    VARVE_RETURN_IF_ERROR(RemoveOwn(found->own, found->note_of_removal));
    for (auto folder = found->folders.rbegin(); folder != found->folders.rend(); ++folder) {
      VARVE_RETURN_IF_ERROR(RemoveFolder(JoinPath(replaced_, *folder)).status());
    }
    if (!note.empty() && !conflict_) {
      VARVE_RETURN_IF_ERROR(storage_.SyncDirectory(replaced_));
      VARVE_RETURN_IF_ERROR(storage_.Remove(note));
    }
    VARVE_ASSIGN_OR_RETURN(const bool removed, RemoveFolder(replaced_));
    if (!removed && !conflict_) {
      conflicts_->push_back(replaced_);
    }
    return Status::Ok();
  }

 private:
  Status MoveOver(const std::vector<OtherFile>& others) {
    const bool has_place = others.empty() || storage_.List(directory_).ok();
    for (const OtherFile& other : others) {
      VARVE_RETURN_IF_ERROR(CheckStop(stop_));
      if (other.is_directory && has_place) {
        VARVE_RETURN_IF_ERROR(MakeFolder(other.name));
      } else if (!other.is_directory) {
        VARVE_RETURN_IF_ERROR(has_place ? Move(other.name) : Conflict(other.name));
      }
    }
    for (const std::string& folder : changed_) {
      VARVE_RETURN_IF_ERROR(storage_.SyncDirectory(folder));
    }
    return Status::Ok();
  }

  Status MakeFolder(const std::string& name) {
    const std::string to = JoinPath(directory_, name);
    const Status made = storage_.MakeDirectory(to);
    if (made.ok()) {
      changed_.insert(ParentPath(to));
    }
    if (storage_.List(to).ok()) {
      changed_.insert(to);  // An attempt that died may have moved files to it.
    }
    // A file in the folder's place is a conflict of the files in the folder.
    return made.code() == StatusCode::kAlreadyExists || made.code() == StatusCode::kInvalidArgument
               ? Status::Ok()
               : made;
  }

  Status Move(const std::string& name) {
    const std::string from = JoinPath(replaced_, name);
    const std::string to = JoinPath(directory_, name);
    Status moved = storage_.Rename(from, to, RenameMode::kNoReplace);
    switch (moved.code()) {
      case StatusCode::kOk: changed_.insert(ParentPath(to)); return Status::Ok();
      case StatusCode::kNotFound: return Status::Ok();  // Its owner has removed it.
      case StatusCode::kAlreadyExists:
        return HoldTheSame(storage_, from, to) ? storage_.Remove(from) : Conflict(name);
      case StatusCode::kInvalidArgument: return Conflict(name);
      default: return moved;
    }
  }

  Status Conflict(const std::string& name) {
    conflict_ = true;
    conflicts_->push_back(JoinPath(replaced_, name));
    return Status::Ok();
  }

  /// Writes the note of a removal, unless an attempt that died has.
  Status Note(const std::string& note) {
    if (note.empty()) {
      return Status::Ok();
    }
    Status written = WriteWholeFile(storage_, note, "");
    if (!written.ok() && written.code() != StatusCode::kAlreadyExists) {
      return written;
    }
    return storage_.SyncDirectory(replaced_);
  }

  Status RemoveOwn(const std::vector<OwnFile>& own, const std::string& note) {
    std::set<std::string> folders;
    for (const OwnFile& file : own) {
      VARVE_RETURN_IF_ERROR(CheckStop(stop_));
      if (!file.fits_pattern) {
        const std::string path = JoinPath(replaced_, file.name);
        VARVE_RETURN_IF_ERROR(storage_.Remove(path));
        folders.insert(ParentPath(path));
      }
    }
    for (const std::string& folder : folders) {
      VARVE_RETURN_IF_ERROR(storage_.SyncDirectory(folder));
    }
    for (const OwnFile& file : own) {
      VARVE_RETURN_IF_ERROR(CheckStop(stop_));
      if (file.fits_pattern && file.name != note && !(conflict_ && file.is_index)) {
        VARVE_RETURN_IF_ERROR(storage_.Remove(JoinPath(replaced_, file.name)));
      }
    }
    return Status::Ok();
  }

  /// Returns false when it holds something.
  Result<bool> RemoveFolder(const std::string& path) {
    EmptyDirectories* const directories = storage_.extras().empty_directories;
    Status removed;
    if (directories != nullptr) {
      removed = directories->RemoveEmpty(path);
    } else if (const auto entries = storage_.List(path); !entries.ok() || !entries->empty()) {
      return false;
    } else {
      removed = storage_.Remove(path);
    }
    if (removed.code() == StatusCode::kAlreadyExists) {
      return false;
    }
    VARVE_RETURN_IF_ERROR(removed);
    return true;
  }

  Storage& storage_;
  const std::string& replaced_;
  const std::string& directory_;
  std::vector<std::string>* conflicts_;
  const std::stop_token& stop_;
  bool conflict_ = false;          ///< A file stays in `replaced_`.
  std::set<std::string> changed_;  ///< Folders that have got new names.
};

}  // namespace

Status RemoveReplaced(Storage& storage, const std::string& replaced, const std::string& directory,
                      std::vector<std::string>* conflicts, const std::stop_token& stop) {
  SymbolicLinks* const links = storage.extras().symbolic_links;
  if (links != nullptr && links->ReadLink(replaced).ok()) {
    return storage.Remove(replaced);  // The link's target is not the replaced checkpoint.
  }
  return Removal(storage, replaced, directory, conflicts, stop).Run();
}

Status RemoveTree(Storage& storage, const std::string& path,  // NOLINT(misc-no-recursion)
                  const std::stop_token& stop, double busy_share) {
  const auto entries = storage.List(path);
  if (entries.status().code() == StatusCode::kNotFound) {
    return Status::Ok();
  }
  VARVE_RETURN_IF_ERROR(entries.status());
  for (const DirectoryEntry& entry : *entries) {
    VARVE_RETURN_IF_ERROR(CheckStop(stop));
    const std::string below = JoinPath(path, entry.name);
    if (entry.is_directory && !entry.is_link) {
      VARVE_RETURN_IF_ERROR(RemoveTree(storage, below, stop, busy_share));
      continue;
    }
    const TimePoint start = Now();
    VARVE_RETURN_IF_ERROR(storage.Remove(below));
    if (busy_share < 1) {
      SleepFor(std::chrono::duration_cast<std::chrono::nanoseconds>((Now() - start) *
                                                                    (1 / busy_share - 1)));
    }
  }
  return storage.Remove(path);
}

Status RemoveStale(Storage& storage, const std::string& stale, const std::string& directory,
                   std::vector<std::string>* conflicts, const std::stop_token& stop) {
  const auto entries = storage.List(stale);
  if (!entries.ok()) {
    return storage.Remove(stale);  // No directory.
  }
  for (const DirectoryEntry& entry : *entries) {
    if (entry.name == kStagingMark) {
      return RemoveTree(storage, stale, stop);
    }
  }
  // Files that a dead attempt has moved may not be durable yet.
  if (storage.List(directory).ok()) {
    VARVE_RETURN_IF_ERROR(storage.SyncDirectory(directory));
  }
  return RemoveReplaced(storage, stale, directory, conflicts, stop);
}

namespace {

Status Recover(Storage& storage, const std::string& displaced, const std::string& path) {
  Status renamed = storage.Rename(displaced, path, RenameMode::kNoReplace);
  if (renamed.code() == StatusCode::kAlreadyExists) {
    const auto entries = storage.List(path);
    if (!entries.ok() || !entries->empty()) {
      return Status::Ok();
    }
    renamed = storage.Rename(displaced, path, RenameMode::kReplace);  // An empty directory.
  }
  if (renamed.code() == StatusCode::kNotFound || renamed.code() == StatusCode::kAlreadyExists) {
    return Status::Ok();
  }
  VARVE_RETURN_IF_ERROR(renamed);
  return storage.SyncDirectory(ParentPath(path));
}

}  // namespace

Status RecoverDisplaced(Storage& storage, const std::string& path) {
  VARVE_RETURN_IF_ERROR(Recover(storage, DisplacedPath(path), path));
  return OldDisplacedPath(path) == DisplacedPath(path)
             ? Status::Ok()
             : Recover(storage, OldDisplacedPath(path), path);
}

Status RemoveStaleOf(Storage& storage, const std::string& path, std::vector<std::string>* conflicts,
                     const std::string& kept) {
  const std::string parent = ParentPath(path);
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(parent));
  bool synced = false;
  for (const DirectoryEntry& entry : entries) {
    const auto name = ParseStaleName(entry.name);
    if (!name || name->target != BaseName(path) || name->kind == StaleKind::kLock ||
        name->kind == StaleKind::kPart || name->kind == StaleKind::kChannel ||
        (name->kind == StaleKind::kDisplaced && !HoldsCheckpoint(storage, path))) {
      continue;
    }
    const std::string stale = JoinPath(parent, entry.name);
    if (stale == kept) {
      continue;
    }
    if (!synced) {
      VARVE_RETURN_IF_ERROR(storage.SyncDirectory(parent));
      synced = true;
    }
    const bool replaced = name->kind == StaleKind::kStaging || name->kind == StaleKind::kDisplaced;
    VARVE_RETURN_IF_ERROR(replaced ? RemoveStale(storage, stale, path, conflicts)
                                   : storage.Remove(stale));
  }
  return Status::Ok();
}

}  // namespace varve
