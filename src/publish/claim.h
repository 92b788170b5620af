/// The claim of a checkpoint's name before anything is written: links, lock, the occupant, and
/// whether it may be replaced.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "varve/options.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

enum class Occupant : std::uint8_t {
  kNothing,
  kEmptyDirectory,
  kCheckpoint,  ///< Or the beginning of a save without coordination, which may be replaced.
  // CheckOccupant returns kCheckpoint for these:
  kParts,          ///< Such a beginning.
  kConfiguration,  ///< A model's configuration and tokenizer alone, which stay beside the
                   ///< checkpoint.
};

/// Returns what stands at `path`, which the caller has locked, if a save may take its place. Reads
/// all of it for Overwrite::kDamaged, until `stop`. Errors: AlreadyExists for a checkpoint that may
/// not be replaced; FailedPrecondition for a pinned one, and for what is no checkpoint; Cancelled.
Result<Occupant> CheckOccupant(Storage& storage, const std::string& path, Overwrite overwrite,
                               const std::stop_token& stop);

/// Returns FailedPrecondition where the checkpoint in the directory `path`, of these entries, is
/// pinned: it stays until it is unpinned.
Status CheckNotPinned(const std::string& path, const std::vector<DirectoryEntry>& entries);

inline constexpr std::uint64_t kMaxPinBytes = 1000;

/// Returns why the checkpoint at `path` is pinned, also where it is displaced; nothing where it is
/// not. A pin that cannot be read counts.
std::optional<std::string> ReadPin(Storage& storage, const std::string& path);

/// Locks the name of a checkpoint. Errors: FailedPrecondition when a save of it is under way;
/// Unimplemented where the file system has no locks.
Result<std::unique_ptr<StorageLock>> LockName(Storage& storage, const std::string& path);

/// Locks the name as LockName; null where the file system has no locks. Errors: FailedPrecondition
/// "a save of it is under way".
Result<std::unique_ptr<StorageLock>> LockUnlessSaved(Storage& storage, const std::string& path);

struct RemovalLock {
  std::unique_ptr<StorageLock> lock;
  bool of_directory = false;  ///< It is a lock of the whole directory above.
};

/// Locks the name of a checkpoint to remove it. Where the file system has no room for the lock
/// file, locks the directory above instead: a removal is how its user makes room. LockName then
/// waits for an instant. Errors: as LockName.
Result<RemovalLock> LockNameToRemove(Storage& storage, const std::string& path);

/// Returns FailedPrecondition where another process has made the lock file since LockNameToRemove
/// locked the directory above: on a network file system that lock holds on this host alone.
Status CheckStillLocked(Storage& storage, const std::string& path, const RemovalLock& lock);

/// Locks `lock_path`, which is tried again for an instant: `ls` and `gc` take locks to see whether
/// a save lives. Errors: as LockName.
Result<std::unique_ptr<StorageLock>> TakeLock(Storage& storage, const std::string& lock_path);

/// Returns the path that `path` leads to when it is a symbolic link, else `path`: a save replaces
/// the checkpoint and leaves links to it alone. Errors: InvalidArgument for links in a circle.
Result<std::string> FollowLinks(Storage& storage, const std::string& path);

/// Returns another name of a directory whose name has "..": one without it. A removal renames "a",
/// and "a/../a" would then lead nowhere.
std::string WithoutParentNames(Storage& storage, const std::string& directory);

/// Makes a directory and its parents, each durable. No-op for what exists, and in object stores, to
/// which it sends no request. Errors: those of Storage::MakeDirectory, naming the directory, but
/// Unavailable instead of NotFound.
Status MakeDirectories(Storage& storage, const std::string& path);

}  // namespace varve
