#include "pipeline/buffer_pool.h"

#include <algorithm>

#include <sys/mman.h>

#include "base/guarded.h"

namespace varve {

BufferPool::BufferPool(std::uint64_t budget_bytes)
    : max_blocks_(std::max<std::uint64_t>(budget_bytes / kPoolBlockBytes, 2)) {}

BufferPool::~BufferPool() {
  for (std::byte* block : free_) {
    ::munmap(block, kPoolBlockBytes);
  }
}

BufferPool& BufferPool::Shared() {
  static auto* pool = new BufferPool(kDefaultBudgetBytes);
  return *pool;
}

Result<BufferPool::Lease> BufferPool::Acquire() {
  {
    std::unique_lock lock(mutex_);
    released_.wait(lock, [&] { return !free_.empty() || allocated_ < max_blocks_; });
    if (!free_.empty()) {
      std::byte* block = free_.back();
      free_.pop_back();
      return Lease(this, block);
    }
    // A place to give the block back to: Release must not need memory.
    VARVE_RETURN_IF_ERROR(Guarded([&] {
      free_.reserve(allocated_ + 1);
      return Status::Ok();
    }));
    ++allocated_;
  }
  void* block =
      ::mmap(nullptr, kPoolBlockBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) {
    const std::scoped_lock lock(mutex_);
    --allocated_;
    released_.notify_one();
    return OutOfMemory().Annotate("take an I/O buffer of 8 MiB");
  }
  // Fewer, larger faults where the system grants huge pages; no harm where it does not.
  ::madvise(block, kPoolBlockBytes, MADV_HUGEPAGE);
  return Lease(this, static_cast<std::byte*>(block));
}

void BufferPool::Release(std::byte* block) {
  const std::scoped_lock lock(mutex_);
  free_.push_back(block);
  released_.notify_one();
}

}  // namespace varve
