/// The state behind MemoryStorage, shared by its files.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>

#include "storage/memory.h"
#include "storage/memory_tree.h"

namespace varve {

/// `mutex` guards everything, the nodes' content included.
struct MemoryStorage::Impl {
  std::mutex mutex;
  MemoryTree tree;
  std::set<const MemoryNode*> locked;
  std::int64_t clock_ns = 0;  // Counts changes: tests must not depend on the time of day.
};

}  // namespace varve
