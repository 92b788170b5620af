/// The locks by which a checkpoint that is being read is told from one that may be removed: readers
/// share a lock on its index file, and a removal by a rule takes that lock alone.
#pragma once

#include <memory>
#include <stop_token>
#include <string>

#include "catalogue/opened.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Locks the index of the checkpoint in `directory` for a reader. Null where there is nothing to
/// lock: no such index (files of ranks that saved apart, files of other formats), or a storage
/// without such locks. Errors: NotFound when the checkpoint is being removed, or has just been.
Result<std::unique_ptr<StorageLock>> LockToRead(Storage& storage, const std::string& directory);

/// Locks it against readers. Null as above. Errors: FailedPrecondition when a reader has it.
Result<std::unique_ptr<StorageLock>> LockToRemove(Storage& storage, const std::string& directory);

/// An index, and the lock that keeps its checkpoint from being removed by the rules of a run.
struct LockedIndex {
  OpenedIndex index;
  std::unique_ptr<StorageLock> lock;
};

/// Opens the index and locks it. A checkpoint may be removed or replaced between the two: then the
/// search begins again.
Result<LockedIndex> OpenLocked(Storage& storage, const std::string& path,
                               const std::stop_token& stop);

}  // namespace varve
