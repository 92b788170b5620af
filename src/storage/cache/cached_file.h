/// Remote files that are read by way of the blocks on this host's disk.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "storage/cache/block_store.h"
#include "storage/environment.h"
#include "varve/storage.h"

namespace varve::cache {

/// Returns a file that reads from `store` what that has, and `file` where it has not, whole blocks
/// of which `store` then keeps. Only blocks that a read touches are fetched; those next to each
/// other in a group with one request. Returns `file` itself where it has no version. `name` is the
/// name by which `file` was opened. `store` must outlive the file.
std::unique_ptr<ReadableFile> ReadThrough(BlockStore& store, const std::string& name,
                                          std::unique_ptr<ReadableFile> file);

/// Returns the options of an environment; none where VARVE_CACHE_DIR is not set. docs/options.md
/// lists them. Errors: InvalidArgument naming the variable whose value cannot be used.
Result<std::optional<CacheOptions>> ReadCacheOptions(const Environment& environment);

/// Returns the store that the process's environment names, null where it names none. It is read at
/// the first call. Never destroyed. Errors: as ReadCacheOptions.
Result<BlockStore*> ProcessBlockStore();

}  // namespace varve::cache
