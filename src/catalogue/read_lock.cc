#include "catalogue/read_lock.h"

#include <array>

#include "catalogue/formats/dcp.h"
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

}  // namespace varve
