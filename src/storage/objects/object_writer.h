/// Writes one object of a store, in parts of equal size where it has uploads. upload_machine.h
/// decides which request comes next and what its answer means; this holds the bytes and calls the
/// store.
///  - The thread whose bytes complete a part uploads it. A write of exactly one part goes from the
///    caller's memory to the store; other bytes are gathered in memory, at most two parts for each
///    thread that writes in order.
///  - What is not larger than one part becomes visible by one Put, in Sync.
///  - Nothing is visible before Sync. The destructor ends an upload that is not done; `varve gc`
///    ends those of processes that died.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "storage/objects/object_storage.h"
#include "varve/storage.h"
#include "varve/storage_plugins.h"

namespace varve {

/// Returns the size of the parts of an object of `size` bytes (0: not known): `least`, and more
/// where it would have more than 10,000 parts.
std::uint64_t PartBytes(std::uint64_t size, std::uint64_t least);

/// Returns a file that becomes the object `name` with its Sync. `calls` outlives it. No byte may be
/// written twice; bytes that are never written are zeros, as in a file. `size` is expected; 0: not
/// known. Without uploads in parts the file is held in memory until Sync.
std::unique_ptr<WritableFile> MakeObjectWriter(const ObjectCalls& calls, std::string name,
                                               std::uint64_t size,
                                               const ObjectStoreOptions& options);

}  // namespace varve
