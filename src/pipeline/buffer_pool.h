/// Aligned blocks of memory, reused across saves and loads, all under one byte budget.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "device/cuda_devices.h"
#include "varve/status.h"

namespace varve {

/// Bytes of one block: measured on virtual and local disks, 4-16 MiB writes run at full speed.
inline constexpr std::uint64_t kPoolBlockBytes = std::uint64_t{8} << 20;

/// Blocks allowed out at once by default, all pipelines of the process together: 256 MiB.
inline constexpr std::uint64_t kDefaultBudgetBytes = std::uint64_t{256} << 20;

/// Hands out blocks and takes them back. A block is page-aligned, so that it can go to O_DIRECT,
/// and stays faulted in: first touch of memory costs 10-60 times its reuse. Every holder gives its
/// block back without waiting for another one, so waiting for a free block always ends.
/// Blocks are mapped in ranges of 64 MiB, which are registered with the CUDA driver when a copy
/// from or to a device first needs one of them. Threads: safe. The pool must outlive its leases.
class BufferPool {
 public:
  explicit BufferPool(std::uint64_t budget_bytes);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// Returns the pool shared by all saves and loads of the process. Never destroyed. A forked child
  /// begins with an empty one: memory that is registered stays with its process.
  static BufferPool& Shared();
  /// Returns a small one likewise, for copies that a holder of a block of Shared may wait for.
  static BufferPool& OfCopies();

  /// Gives itself back when destroyed. Move-only; empty after being moved from.
  class Lease {
   public:
    Lease() = default;
    Lease(BufferPool* pool, std::byte* block) : pool_(pool), block_(block) {}
    Lease(Lease&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)),
          block_(std::exchange(other.block_, nullptr)) {}
    Lease& operator=(Lease&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(block_, other.block_);
      return *this;
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() {
      if (block_ != nullptr) {
        pool_->Release(block_);
      }
    }
    [[nodiscard]] std::byte* data() const { return block_; }
    /// Has the block registered, so that copies from and to devices go straight to it. Returns
    /// whether it is; where the driver refuses, copies are slower.
    bool Pin(CudaDevices& devices, int device) const { return pool_->Pin(block_, devices, device); }

   private:
    BufferPool* pool_ = nullptr;
    std::byte* block_ = nullptr;
  };

  /// Returns a block of kPoolBlockBytes; waits while the whole budget is out. Errors: OutOfSpace
  /// when the system has no memory.
  Result<Lease> Acquire();

 private:
  /// Blocks of one mapping.
  struct Range {
    std::uint64_t bytes = 0;
    enum class Pinned : std::uint8_t { kNotYet, kYes, kRefused } pinned = Pinned::kNotYet;
  };
  void Release(std::byte* block);
  bool Pin(std::byte* block, CudaDevices& devices, int device);
  /// Maps at most `blocks` more, at least one. The lock is held. Errors: OutOfSpace.
  Status Map(std::uint64_t blocks);

  const std::uint64_t max_blocks_;
  std::mutex mutex_;  // Guards all below.
  std::condition_variable released_;
  std::vector<std::byte*> free_;  // Most recently used last: its pages are the warmest.
  std::uint64_t allocated_ = 0;
  std::map<std::byte*, Range> ranges_;
  CudaDevices* devices_ = nullptr;  // By which ranges were registered.
};

}  // namespace varve
