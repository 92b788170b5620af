#include "pipeline/staging_pool.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/file_limit.h"
#include "base/guarded.h"
#include "base/run_threads.h"
#include "base/threads.h"
#include "base/time_source.h"
#include "device/cuda_devices.h"
#include "pipeline/huge_pages.h"
#include "pipeline/memory_limits.h"

namespace varve {
namespace {

// Refusals in a row. A refusal may take long, so the pool then asks no more.
constexpr int kMostRefusals = 16;

/// Threads that take memory ahead. Measured on 16 cores, 4 GiB: 1.1 s with one, 0.46 s with four,
/// 0.35 s with sixteen, which training would miss.
constexpr int kPrepareThreads = 4;

/// Memory for samples that is registered ahead, at most.
constexpr std::uint64_t kMostForSamples = std::uint64_t{16} << 20;

/// Returns the error that there is no staging memory; it names the option that asks for less.
Status Refused(const char* what, std::uint64_t bytes, int error) {
  return Status(StatusCode::kOutOfSpace,
                std::string(what) + " of " + std::to_string(bytes) +
                    " bytes: " + std::strerror(error) +
                    "; choose a smaller memory_budget (budget_bytes in C++)" +
                    (error == EFBIG ? " or raise the limit of this process (ulimit -f)" : ""))
      .With({.system_error = error});
}

}  // namespace

std::uint64_t DefaultStagingBudget(int local_ranks) {
  return AvailableMemory() / 2 / static_cast<std::uint64_t>(std::max(local_ranks, 1));
}

StagingPool::StagingPool(std::byte* base, std::size_t block_count, int fd)
    : base_(base),
      block_count_(block_count),
      fd_(fd),
      pages_(block_count, Pages::kNone),
      registration_(std::make_unique<StagingRegistration>(base)) {
  free_.reserve(block_count);  // Giving blocks back must not need memory.
}

namespace {

/// Makes shared memory. It is sealed, so that a process that maps it never touches memory that does
/// not exist (SIGBUS).
Result<int> MakeSharedMemory(std::uint64_t bytes) {
  if (ExceedsFileLimit(bytes)) {
    return Refused("make shared staging memory", bytes, EFBIG);
  }
  const int fd = ::memfd_create("varve-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const int error = errno;
    if (fd >= 0) {
      ::close(fd);
    }
    return Refused("make shared staging memory", bytes, error);
  }
  return fd;
}

}  // namespace

Result<std::unique_ptr<StagingPool>> StagingPool::Make(std::uint64_t budget_bytes, bool shared) {
  const std::size_t blocks = std::max<std::uint64_t>(budget_bytes / kPoolBlockBytes, 2);
  if (blocks > std::numeric_limits<std::int64_t>::max() / kPoolBlockBytes - 1) {
    return InvalidArgument("a staging budget of " + std::to_string(budget_bytes) + " bytes");
  }
  const std::uint64_t bytes = blocks * kPoolBlockBytes;
  int fd = -1;
  if (shared) {
    VARVE_ASSIGN_OR_RETURN(fd, MakeSharedMemory(bytes));
  }
  std::byte* const base = MapForHugePages(bytes, PROT_READ | PROT_WRITE, fd);
  if (base == nullptr) {
    const int error = errno;
    if (fd >= 0) {
      ::close(fd);
    }
    return Refused("map staging memory", bytes, error);
  }
  // A forked child (a data loader) must neither keep the memory alive nor make it be copied.
  ::madvise(base, bytes, MADV_HUGEPAGE);
  ::madvise(base, bytes, MADV_DONTFORK);
  auto pool = Guarded([&]() -> Result<std::unique_ptr<StagingPool>> {
    return std::unique_ptr<StagingPool>(new StagingPool(base, blocks, fd));
  });
  if (!pool.ok()) {
    ::munmap(base, bytes);
    if (fd >= 0) {
      ::close(fd);
    }
  }
  return pool;
}

StagingPool::~StagingPool() {
  StopPreparing();
  registration_.reset();
  ::munmap(base_, block_count_ * kPoolBlockBytes);
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

StagingPool::Reservation::~Reservation() {
  if (pool_ != nullptr) {
    pool_->Release(blocks_);
  }
}

void StagingPool::TakeSharedPages(std::byte* block) {
  if (IsSimulated()) {
    // Thousands of runs use a few pages each; written from where they are, as huge pages would be.
    pages_[NumberOf(block)] = Pages::kHuge;
    return;
  }
  Pages& pages = pages_[NumberOf(block)];
  if (fd_ < 0 || pages != Pages::kNone) {
    return;
  }
  const std::span<std::byte> memory(block, kPoolBlockBytes);
  if (refusals_ < kMostRefusals && TakeHugeSharedPages(memory)) {
    pages = Pages::kHuge;
    refusals_ = 0;
    return;
  }
  TakePages(memory);
  pages = Pages::kSmall;
  ++refusals_;
}

StagingPool::Ticket StagingPool::Queue() {
  const std::scoped_lock lock(mutex_);
  return Ticket{next_ticket_++};
}

Result<StagingPool::Reservation> StagingPool::Reserve(Ticket ticket, std::size_t wanted,
                                                      const std::stop_token& stop) {
  wanted = std::min(wanted, block_count_);
  std::vector<std::byte*> blocks;
  // A ticket is always served or left, also where there is no memory for the list of its blocks:
  // those behind it wait for that.
  const Status listed = Guarded([&] { blocks.reserve(wanted); });
  if (!listed.ok()) {
    wanted = 0;
  }
  std::unique_lock lock(mutex_);
  const auto is_served = [&] { return Ticket{serving_} == ticket; };
  if (!Wait(changed_, lock, stop, is_served)) {
    // Passed over when it would be served: no ticket behind it waits for that.
    const Status left = Guarded([&] { left_.insert(ticket); });
    if (left.ok()) {
      return Status(StatusCode::kCancelled, "cancelled while waiting for staging memory");
    }
    (void)Wait(changed_, lock, {}, is_served);  // That moment comes: each save before it ends.
  }
  const Status served = Guarded([&] { return AwaitFree(wanted, &lock, stop); });
  do {
    ++serving_;
  } while (left_.erase(Ticket{serving_}) > 0);
  changed_.notify_all();
  VARVE_RETURN_IF_ERROR(listed);
  VARVE_RETURN_IF_ERROR(served);
  while (blocks.size() < wanted && !free_.empty()) {
    blocks.push_back(free_.back());
    free_.pop_back();
  }
  while (blocks.size() < wanted) {
    blocks.push_back(base_ + cold_++ * kPoolBlockBytes);
  }
  return Reservation(this, std::move(blocks));
}

void StagingPool::Release(std::span<std::byte* const> blocks) {
  const std::scoped_lock lock(mutex_);
  free_.insert(free_.end(), blocks.begin(), blocks.end());
  changed_.notify_all();
}

void StagingPool::Poke() {
  const std::scoped_lock lock(mutex_);
  ++pokes_;
  changed_.notify_all();
}

Status StagingPool::AwaitFree(std::size_t wanted, std::unique_lock<std::mutex>* lock,
                              const std::stop_token& stop) {
  const auto enough = [&] { return free_.size() + (block_count_ - cold_) >= wanted; };
  while (!enough() && !stop.stop_requested()) {
    const std::uint64_t pokes = pokes_;
    if (give_back_) {
      lock->unlock();
      const Status given_back = Guarded([&] { give_back_(); });
      lock->lock();
      VARVE_RETURN_IF_ERROR(given_back);
    }
    Wait(changed_, *lock, stop, [&] { return enough() || pokes_ != pokes; });
  }
  return enough() ? Status::Ok()
                  : Status(StatusCode::kCancelled, "cancelled while waiting for staging memory");
}

std::size_t StagingPool::warm_blocks() {
  const std::scoped_lock lock(mutex_);
  return cold_;
}

std::optional<std::size_t> StagingPool::TakeCold(std::size_t limit) {
  const std::scoped_lock lock(mutex_);
  return cold_ < std::min(limit, block_count_) ? std::optional(cold_++) : std::nullopt;
}

void StagingPool::Populate(std::size_t limit, const std::stop_token& stop) {
  const std::size_t known = warm_blocks();
  const std::size_t count = limit > known ? limit - known : 0;
  // Where it fails, a block is as good as one that was not prepared.
  (void)RunThreads(count, kPrepareThreads, stop, [&](std::size_t) {
    if (const auto index = TakeCold(limit)) {
      std::byte* const ready = base_ + *index * kPoolBlockBytes;
      TakeSharedPages(ready);
      TakePages({ready, kPoolBlockBytes});  // Shared memory has its own pages by now.
      Release({&ready, 1});
    }
    return Status::Ok();
  });
}

void StagingPool::InBackground(bool wait, std::function<void(const std::stop_token&)> work) {
  std::unique_lock lock(preparing_mutex_, std::defer_lock);
  if (wait) {
    lock.lock();
  } else if (!lock.try_lock() || is_preparing_) {
    return;  // A caller waits for the thread, or it is at work.
  }
  if (preparing_.joinable()) {
    preparing_.join();
  }
  is_preparing_ = true;
  // Best effort: where no thread starts, the saves take the memory themselves.
  const Status started = Guarded([&] {
    preparing_ =
        StartThread<std::jthread>([this, run = std::move(work)](const std::stop_token& stop) {
          (void)Guarded([&] { run(stop); });
          is_preparing_ = false;
        });
  });
  if (!started.ok()) {
    is_preparing_ = false;
  }
}

namespace {

/// Registers what samples of that many bytes on a device need, before and after a copy, so that the
/// call of the first overlapped save does not.
void KeepMemoryForSamples(CudaDevices& devices, int device, std::uint64_t bytes) {
  (void)PinnedMemory::Make(devices, device, std::min(bytes / 1024, kMostForSamples));
}

}  // namespace

void StagingPool::Prepare(std::uint64_t bytes, std::optional<int> pin_for) {
  const std::size_t limit = std::min<std::size_t>(DivideUp(bytes, kPoolBlockBytes), block_count_);
  if (pin_for) {
    TakeFromNodeOf(*pin_for);
  }
  InBackground(true, [this, limit, pin_for](const std::stop_token& stop) {
    Populate(limit, stop);
    const auto devices = pin_for ? CudaDevices::Get() : Unimplemented("not asked for");
    if (devices.ok() && !stop.stop_requested()) {
      registration_->Cover(**devices, *pin_for, limit * kPoolBlockBytes, false);
      (*devices)->CompileKernels(*pin_for);
      KeepMemoryForSamples(**devices, *pin_for, limit * kPoolBlockBytes);
    }
  });
}

void StagingPool::PinUsed(int device) {
  const std::uint64_t used = warm_blocks() * kPoolBlockBytes;
  const auto devices = CudaDevices::Get();
  if (!devices.ok() || (!registration_->Wants(used) && !(*devices)->WantsKernels(device))) {
    return;
  }
  InBackground(false, [this, &devices = **devices, device, used](const std::stop_token& stop) {
    registration_->Cover(devices, device, used, true);
    if (!stop.stop_requested()) {
      devices.CompileKernels(device);
    }
  });
}

void StagingPool::TakeFromNodeOf(int device) {
  std::call_once(node_chosen_, [&] {
    const auto devices = CudaDevices::Get();
    const auto node = devices.ok() ? (*devices)->NumaNodeOf(device) : std::nullopt;
    if (node && PreferNode({base_, block_count_ * kPoolBlockBytes}, *node)) {
      registration_->SetNode(node);
    }
  });
}

void StagingPool::StopPreparing() {
  const std::scoped_lock lock(preparing_mutex_);
  preparing_ = {};  // Asks it to stop, and joins.
}

void StagingPool::WaitPrepared() {
  const std::scoped_lock lock(preparing_mutex_);
  if (preparing_.joinable()) {
    preparing_.join();
  }
}

}  // namespace varve
