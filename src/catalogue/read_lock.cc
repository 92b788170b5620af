#include "catalogue/read_lock.h"

#include <array>
#include <chrono>
#include <utility>

#include "base/time_source.h"
#include "catalogue/formats/dcp.h"
#include "catalogue/open.h"
#include "format/commit_record.h"

namespace varve {
namespace {

/// Locks the first of the index files that is there. NotFound when none is.
Result<std::unique_ptr<StorageLock>> LockIndex(Storage& storage, const std::string& directory,
                                               LockMode mode) {
  FileLocks* const locks = storage.extras().file_locks;
  Status none = Unimplemented("the storage has no such locks");
  if (locks == nullptr) {
    return none;
  }
  for (const std::string_view index : {kCommitRecordName, kDcpIndexName}) {
    auto lock = locks->LockFile(JoinPath(directory, index), mode);
    if (lock.status().code() != StatusCode::kNotFound) {
      return lock;
    }
    none = lock.status();
  }
  return none;
}

}  // namespace

Result<std::unique_ptr<StorageLock>> LockToRead(Storage& storage, const std::string& directory) {
  auto lock = LockIndex(storage, directory, LockMode::kShared);
  if (lock.ok() || lock.status().code() == StatusCode::kFailedPrecondition) {
    return lock.ok() ? std::move(lock)
                     : NotFound(directory + " is being removed by the rules of its run");
  }
  return std::unique_ptr<StorageLock>();  // Reading goes on without.
}

Result<std::unique_ptr<StorageLock>> LockToRemove(Storage& storage, const std::string& directory) {
  auto lock = LockIndex(storage, directory, LockMode::kExclusive);
  if (lock.ok()) {
    return lock;
  }
  if (lock.status().code() == StatusCode::kFailedPrecondition) {
    return FailedPrecondition(directory + " is being read");
  }
  return std::unique_ptr<StorageLock>();
}

Result<LockedIndex> OpenLocked(Storage& storage, const std::string& path,
                               const std::stop_token& stop) {
  constexpr int kTries = 5;
  for (int i = 1;; ++i) {
    VARVE_ASSIGN_OR_RETURN(OpenedIndex index, OpenWanted(storage, path, stop));
    // A file that is a checkpoint has no index of its own in the directory.
    const bool has_index = index.record.has_value() || index.metadata.format == Format::kDcp;
    auto lock = has_index ? LockToRead(storage, index.home())
                          : Result<std::unique_ptr<StorageLock>>(std::unique_ptr<StorageLock>());
    if (lock.ok() && (*lock == nullptr || i == kTries || !WasReplaced(storage, index))) {
      return LockedIndex{std::move(index), std::move(*lock)};
    }
    if (i == kTries) {
      return lock.status();  // Not Ok, see above.
    }
    SleepFor(std::chrono::milliseconds(20));
  }
}

}  // namespace varve
