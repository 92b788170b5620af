#include "pipeline/buffer_pool.h"

#include <algorithm>
#include <cerrno>

#include <sys/mman.h>

#include "base/guarded.h"
#include "base/of_process.h"
#include "pipeline/huge_pages.h"

namespace varve {
namespace {

/// Blocks of one mapping, and of one registration.
constexpr std::uint64_t kRangeBlocks = 8;

constexpr std::uint64_t kCopiesBudgetBytes = kRangeBlocks * kPoolBlockBytes;

/// The parent's are left as they are in a forked child: a thread of it may have held a lock.
struct Pools {
  BufferPool shared{kDefaultBudgetBytes};
  BufferPool of_copies{kCopiesBudgetBytes};

  static Pools& OfThisProcess() {
    static auto& pools = *new OfProcess<Pools>();
    return pools.Get();
  }
};

}  // namespace

BufferPool::BufferPool(std::uint64_t budget_bytes)
    : max_blocks_(std::max<std::uint64_t>(budget_bytes / kPoolBlockBytes, 2)) {}

BufferPool::~BufferPool() {
  for (const auto& [base, range] : ranges_) {
    if (range.pinned == Range::Pinned::kYes) {
      devices_->Unregister(base);
    }
    ::munmap(base, range.bytes);
  }
}

BufferPool& BufferPool::Shared() { return Pools::OfThisProcess().shared; }

BufferPool& BufferPool::OfCopies() { return Pools::OfThisProcess().of_copies; }

Status BufferPool::Map(std::uint64_t blocks) {
  return Guarded([&] {
    for (; blocks > 0; blocks = blocks > 1 ? 1 : 0) {
      const std::uint64_t bytes = blocks * kPoolBlockBytes;
      std::byte* const base = MapForHugePages(bytes, PROT_READ | PROT_WRITE, -1);
      if (base == nullptr) {
        continue;  // There may be room for one.
      }
      // Fewer, larger faults where the system grants huge pages; no harm where it does not.
      ::madvise(base, bytes, MADV_HUGEPAGE);
      // Places to give the blocks back to: Release must not need memory.
      free_.reserve(allocated_ + blocks);
      ranges_[base].bytes = bytes;
      for (std::uint64_t i = blocks; i-- > 0;) {
        free_.push_back(base + i * kPoolBlockBytes);
      }
      allocated_ += blocks;
      return Status::Ok();
    }
    return OutOfMemory().Annotate("take an I/O buffer of 8 MiB");
  });
}

Result<BufferPool::Lease> BufferPool::Acquire() {
  std::unique_lock lock(mutex_);
  released_.wait(lock, [&] { return !free_.empty() || allocated_ < max_blocks_; });
  if (free_.empty()) {
    VARVE_RETURN_IF_ERROR(Map(std::min(kRangeBlocks, max_blocks_ - allocated_)));
  }
  std::byte* block = free_.back();
  free_.pop_back();
  return Lease(this, block);
}

bool BufferPool::Pin(std::byte* block, CudaDevices& devices, int device) {
  const std::scoped_lock lock(mutex_);
  auto& [base, range] = *std::prev(ranges_.upper_bound(block));
  if (range.pinned == Range::Pinned::kNotYet) {
    // A child does not get what a device copies to: it would be copied for it page by page.
    ::madvise(base, range.bytes, MADV_DONTFORK);
    devices_ = &devices;
    range.pinned = devices.Register(device, {base, range.bytes}).ok() ? Range::Pinned::kYes
                                                                      : Range::Pinned::kRefused;
  }
  return range.pinned == Range::Pinned::kYes;
}

void BufferPool::Release(std::byte* block) {
  const std::scoped_lock lock(mutex_);
  free_.push_back(block);
  released_.notify_one();
}

}  // namespace varve
