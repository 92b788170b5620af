/// Writes one object of a registered store.
#pragma once

#include <memory>
#include <string>

#include "storage/objects/object_storage.h"
#include "varve/storage.h"
#include "varve/storage_plugins.h"

namespace varve {

/// Returns a file that becomes the object `name` with its Sync. `calls` outlives it. No byte may be
/// written twice; bytes that are never written are zeros. `size` is expected; 0: not known. Without
/// uploads in parts the file is held in memory until Sync.
std::unique_ptr<WritableFile> MakePartWriter(const ObjectCalls& calls, std::string name,
                                             std::uint64_t size, const ObjectStoreOptions& options);

}  // namespace varve
