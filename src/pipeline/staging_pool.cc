#include "pipeline/staging_pool.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pipeline/huge_pages.h"

namespace varve {
namespace {

// One after the other. A refusal may take long, so it is not asked for ever.
constexpr int kMostRefusals = 16;

/// The first number in a file; nothing when there is none ("max").
std::optional<std::uint64_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

/// What a cgroup has left, if it is limited.
std::uint64_t LeftIn(const std::string& limit_file, const std::string& used_file) {
  const auto limit = NumberIn(limit_file);
  const auto used = NumberIn(used_file);
  if (!limit || !used) {
    return std::numeric_limits<std::uint64_t>::max();
  }
  return *limit > *used ? *limit - *used : 0;
}

/// What the cgroups around this process have left: its own and all above it (version 2), and the
/// one that a container shows (version 1).
std::uint64_t LeftInCgroups() {
  std::uint64_t left = LeftIn("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                              "/sys/fs/cgroup/memory/memory.usage_in_bytes");
  std::string line;
  for (std::ifstream file("/proc/self/cgroup"); std::getline(file, line);) {
    if (!line.starts_with("0::/")) {
      continue;
    }
    std::string folder = "/sys/fs/cgroup" + line.substr(3);
    while (folder.size() >= std::string("/sys/fs/cgroup").size()) {
      left = std::min(left, LeftIn(folder + "/memory.max", folder + "/memory.current"));
      folder.resize(folder.find_last_of('/'));
    }
  }
  return left;
}

std::uint64_t AvailableMemory() {
  std::uint64_t available = std::uint64_t{1} << 30;
  std::string line;
  for (std::ifstream file("/proc/meminfo"); std::getline(file, line);) {
    constexpr std::string_view kName = "MemAvailable:";
    if (line.starts_with(kName)) {
      available = std::strtoull(line.c_str() + kName.size(), nullptr, 10) << 10;
    }
  }
  return std::min(available, LeftInCgroups());
}

}  // namespace

std::uint64_t DefaultStagingBudget(int local_ranks) {
  return AvailableMemory() / 2 / static_cast<std::uint64_t>(std::max(local_ranks, 1));
}

StagingPool::StagingPool(std::byte* base, std::size_t block_count, int fd)
    : base_(base), block_count_(block_count), fd_(fd), pages_(block_count, Pages::kNone) {}

namespace {

/// Sealed, so that a process that maps it never touches memory which is not there (SIGBUS).
Result<int> MakeSharedMemory(std::uint64_t bytes) {
  const int fd = ::memfd_create("varve-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const int error = errno;
    if (fd >= 0) {
      ::close(fd);
    }
    return Status(StatusCode::kOutOfSpace,
                  "make " + std::to_string(bytes) +
                      " bytes of shared memory for staging: " + std::strerror(error));
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
    return Status(StatusCode::kOutOfSpace, "map " + std::to_string(bytes) +
                                               " bytes of staging memory: " + std::strerror(error));
  }
  // A forked child (a data loader) must neither keep the memory alive nor make it be copied.
  ::madvise(base, bytes, MADV_HUGEPAGE);
  ::madvise(base, bytes, MADV_DONTFORK);
  return std::unique_ptr<StagingPool>(new StagingPool(base, blocks, fd));
}

StagingPool::~StagingPool() {
  StopPreparing();
  ::munmap(base_, block_count_ * kPoolBlockBytes);
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

StagingPool::Reservation::~Reservation() {
  if (pool_ != nullptr) {
    pool_->Release(&blocks_);
  }
}

void StagingPool::TakeSharedPages(std::byte* block) {
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
  blocks.reserve(wanted);
  std::unique_lock lock(mutex_);
  if (!changed_.wait(lock, stop, [&] { return Ticket{serving_} == ticket; })) {
    left_.insert(ticket);  // Passed over when its turn comes: nobody behind it waits for that.
    return Status(StatusCode::kCancelled, "cancelled while waiting for staging memory");
  }
  const bool served = AwaitFree(wanted, &lock, stop);
  do {
    ++serving_;
  } while (left_.erase(Ticket{serving_}) > 0);
  changed_.notify_all();
  if (!served) {
    return Status(StatusCode::kCancelled, "cancelled while waiting for staging memory");
  }
  while (blocks.size() < wanted && !free_.empty()) {
    blocks.push_back(free_.back());
    free_.pop_back();
  }
  while (blocks.size() < wanted) {
    blocks.push_back(base_ + cold_++ * kPoolBlockBytes);
  }
  return Reservation(this, std::move(blocks));
}

void StagingPool::Release(std::vector<std::byte*>* blocks) {
  const std::scoped_lock lock(mutex_);
  free_.insert(free_.end(), blocks->begin(), blocks->end());
  blocks->clear();
  changed_.notify_all();
}

void StagingPool::Poke() {
  const std::scoped_lock lock(mutex_);
  ++pokes_;
  changed_.notify_all();
}

bool StagingPool::AwaitFree(std::size_t wanted, std::unique_lock<std::mutex>* lock,
                            const std::stop_token& stop) {
  const auto enough = [&] { return free_.size() + (block_count_ - cold_) >= wanted; };
  while (!enough() && !stop.stop_requested()) {
    const std::uint64_t pokes = pokes_;
    if (reclaim_) {
      lock->unlock();
      reclaim_();
      lock->lock();
    }
    changed_.wait(*lock, stop, [&] { return enough() || pokes_ != pokes; });
  }
  return enough();
}

std::size_t StagingPool::warm_blocks() {
  const std::scoped_lock lock(mutex_);
  return cold_;
}

std::optional<std::size_t> StagingPool::TakeCold(std::size_t limit) {
  const std::scoped_lock lock(mutex_);
  return cold_ < std::min(limit, block_count_) ? std::optional(cold_++) : std::nullopt;
}

void StagingPool::Populate(std::size_t limit,
                           const std::function<void(std::span<std::byte>)>& on_ready,
                           const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const auto index = TakeCold(limit);
    if (!index) {
      return;
    }
    std::vector<std::byte*> ready{base_ + *index * kPoolBlockBytes};
    TakeSharedPages(ready.front());
    TakePages({ready.front(), kPoolBlockBytes});  // Of which shared memory has its own by now.
    on_ready({ready.front(), kPoolBlockBytes});
    Release(&ready);
  }
}

void StagingPool::Prepare(std::uint64_t bytes, std::function<void(std::span<std::byte>)> on_ready) {
  const std::size_t limit = bytes / kPoolBlockBytes + (bytes % kPoolBlockBytes == 0 ? 0 : 1);
  WaitPrepared();
  preparing_ = std::jthread([this, limit, ready = std::move(on_ready)](
                                const std::stop_token& stop) { Populate(limit, ready, stop); });
}

void StagingPool::StopPreparing() { preparing_ = {}; }  // Asks it to stop, and joins.

void StagingPool::WaitPrepared() {
  if (preparing_.joinable()) {
    preparing_.join();
  }
}

}  // namespace varve
