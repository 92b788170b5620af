/// Memory in which asynchronous saves hold what they have copied until it is durable.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "pipeline/buffer_pool.h"
#include "pipeline/staging_registration.h"
#include "varve/status.h"

namespace varve {

/// One mapping as large as its budget, cut into blocks of kPoolBlockBytes. Memory is taken from the
/// system when a block is first used, or ahead of that by Prepare, and kept: the first touch of a
/// page costs 10-60 times its reuse.
///
/// The memory is anonymous, in huge pages, or a memfd, which another process can map. A memfd is
/// used only where it is needed: where the system has no huge pages for shared memory, O_DIRECT
/// from it pins 4 KiB pages one by one. Measured: 1 GiB in 0.31 s from anonymous memory, in 0.56 s
/// from a memfd. Threads: safe. Must outlive its reservations.
class StagingPool {
 public:
  /// Reserves address space for `budget_bytes`, rounded down to blocks (at least two), and no
  /// memory. Errors: OutOfSpace when the system refuses.
  static Result<std::unique_ptr<StagingPool>> Make(std::uint64_t budget_bytes, bool shared = false);
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;
  ~StagingPool();

  /// Blocks that belong to one save. Gives them back when destroyed. Move-only.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)), blocks_(std::move(other.blocks_)) {}
    Reservation& operator=(Reservation&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(blocks_, other.blocks_);
      return *this;
    }
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;
    ~Reservation();
    /// Addresses of the blocks, page-aligned.
    [[nodiscard]] const std::vector<std::byte*>& blocks() const { return blocks_; }
    /// Returns the number of the pool's block that begins at `address`, one of blocks().
    [[nodiscard]] std::uint64_t NumberOf(const std::byte* address) const {
      return pool_->NumberOf(address);
    }
    /// Takes pages from the system for one of blocks() of shared memory. Must be called before the
    /// block is written to, and not by two threads at once for one block.
    void TakeSharedPages(std::byte* block) const { pool_->TakeSharedPages(block); }
    /// Returns whether TakeSharedPages got huge pages for the block.
    [[nodiscard]] bool HasHugePages(const std::byte* block) const {
      return pool_->pages_[NumberOf(block)] == Pages::kHuge;
    }

   private:
    friend class StagingPool;
    Reservation(StagingPool* pool, std::vector<std::byte*> blocks)
        : pool_(pool), blocks_(std::move(blocks)) {}
    StagingPool* pool_ = nullptr;
    std::vector<std::byte*> blocks_;
  };

  /// A place in the queue for memory. Each must be given to Reserve, once.
  enum class Ticket : std::uint64_t {};
  Ticket Queue();

  /// Waits until `wanted` blocks are free, or all the pool has if it has fewer, and takes them at
  /// once: a save that holds some blocks never waits for others, so saves cannot block each other
  /// for good. Served in the order of the tickets. Errors: Cancelled on `stop`; OutOfSpace when the
  /// system has no memory for the list of blocks. The ticket is used up also then.
  Result<Reservation> Reserve(Ticket ticket, std::size_t wanted, const std::stop_token& stop);
  Result<Reservation> Reserve(std::size_t wanted, const std::stop_token& stop) {
    return Reserve(Queue(), wanted, stop);
  }

  /// Sets a function that gives back blocks that are held without need. Threads that wait in
  /// Reserve call it when blocks are missing. A caller that begins to hold such blocks calls Poke,
  /// so that it is called again. Requires: called before the first Reserve.
  void SetOnShortage(std::function<void()> give_back) { give_back_ = std::move(give_back); }
  void Poke();

  /// Starts a thread that takes `bytes` of memory from the system, and then registers them for
  /// copies from that device, if one is given. First waits for the end of an earlier call's work.
  /// Saves meanwhile find the blocks that are ready. Does nothing where the system starts no
  /// thread: saves then take memory as they need it.
  void Prepare(std::uint64_t bytes, std::optional<int> pin_for = {});

  /// Begins to register the memory that has been used, in the background, where there is much that
  /// is not: registering takes longer than a copy, and both suffer where memory is registered and
  /// taken at once, so the first save does not wait for it. Has the device's kernels compiled
  /// there, too.
  void PinUsed(int device);

  /// Has memory that is not used yet taken from the NUMA node of that device. The first call
  /// counts.
  void TakeFromNodeOf(int device);

  /// Waits until the thread of Prepare or PinUsed has ended.
  void WaitPrepared();
  /// Ends Prepare's thread at its next block, and waits for that.
  void StopPreparing();

  [[nodiscard]] StagingMemory memory_report() const { return registration_->report(); }
  [[nodiscard]] std::size_t block_count() const { return block_count_; }
  /// Returns the memfd of a shared pool, block 0 at its beginning and sealed against changes of its
  /// size; -1 of others.
  [[nodiscard]] int fd() const { return fd_; }
  /// Returns the number of blocks whose memory has been taken from the system.
  [[nodiscard]] std::size_t warm_blocks();

 private:
  /// Waits until `wanted` blocks are free. Errors: Cancelled on `stop`; what `give_back` throws.
  Status AwaitFree(std::size_t wanted, std::unique_lock<std::mutex>* lock,
                   const std::stop_token& stop);
  StagingPool(std::byte* base, std::size_t block_count, int fd);
  enum class Pages : std::uint8_t { kNone, kSmall, kHuge };
  [[nodiscard]] std::uint64_t NumberOf(const std::byte* address) const {
    return static_cast<std::uint64_t>(address - base_) / kPoolBlockBytes;
  }
  void TakeSharedPages(std::byte* block);
  void Release(std::span<std::byte* const> blocks);
  /// Returns a block that has not been used yet; nothing when `limit` are in use or ready.
  std::optional<std::size_t> TakeCold(std::size_t limit);
  void Populate(std::size_t limit, const std::stop_token& stop);
  /// Runs `work` on the background thread, if that is free or after it is with `wait`.
  void InBackground(bool wait, std::function<void(const std::stop_token&)> work);

  std::byte* const base_;
  const std::size_t block_count_;
  const int fd_;
  std::vector<Pages> pages_;  // Of each block of shared memory; belongs to the holder of the block.
  std::atomic<int> refusals_{0};
  std::function<void()> give_back_;
  std::mutex mutex_;  // Guards all below but the registration and the thread.
  std::condition_variable_any changed_;
  std::vector<std::byte*> free_;  // Used before; most recently last: its pages are the warmest.
  std::size_t cold_ = 0;          // Blocks [0, cold_) have been used; those from it on never.
  std::uint64_t next_ticket_ = 0;
  std::uint64_t serving_ = 0;
  std::uint64_t pokes_ = 0;
  std::set<Ticket> left_;  // Whose holders no longer wait.
  std::unique_ptr<StagingRegistration> registration_;
  std::once_flag node_chosen_;
  std::mutex preparing_mutex_;  // Guards the thread.
  std::atomic<bool> is_preparing_{false};
  std::jthread preparing_;
};

/// Returns how much memory to give to staging where the user has not said: half of what this
/// process could get without harm (what the system has available, or what its cgroup has left),
/// shared by `local_ranks` processes of this node.
std::uint64_t DefaultStagingBudget(int local_ranks);

}  // namespace varve
