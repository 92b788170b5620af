#include "storage/s3/traffic/node_pace.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_descriptor.h"

namespace varve::s3 {
namespace {

constexpr std::chrono::nanoseconds kFarthest = std::chrono::hours(1);

}  // namespace

NodePace::NodePace(std::string file, std::uint64_t bytes_per_second)
    : file_(std::move(file)), bytes_per_second_(bytes_per_second) {}

NodePace::~NodePace() {
  if (next_start_ != nullptr) {
    ::munmap(next_start_, sizeof(*next_start_));
  }
}

/// Called with the lock held. The file is made longer and never shorter: no page of it goes away.
Status NodePace::Open() {
  if (next_start_ != nullptr) {
    return Status::Ok();
  }
  constexpr int kMode = 0600;
  const auto refused = [&](int error) {
    return FailedPrecondition("use " + file_ + ": " + std::strerror(error) +
                              "; VARVE_S3_MAX_BANDWIDTH_PER_NODE needs this file: remove it, make "
                              "room, or do not set the limit");
  };
  const FileDescriptor file(
      ::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kMode));
  struct stat status{};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) {
    return refused(errno);
  }
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid()) {
    return refused(EPERM);
  }
  // With its memory: a page for which there is no room would end the process by SIGBUS.
  if (const int error = ::posix_fallocate(file.get(), 0, sizeof(*next_start_)); error != 0) {
    return refused(error);
  }
  void* const memory =
      ::mmap(nullptr, sizeof(*next_start_), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) {
    return refused(errno);
  }
  next_start_ = static_cast<std::int64_t*>(memory);
  return Status::Ok();
}

Result<TimePoint> NodePace::Reserve(std::uint64_t bytes, TimePoint now) {
  {
    const std::scoped_lock lock(mutex_);
    VARVE_RETURN_IF_ERROR(Open());
  }
  const auto takes =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(
          static_cast<double>(bytes) / static_cast<double>(bytes_per_second_)));
  const std::int64_t present =
      std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
  const std::atomic_ref<std::int64_t> shared(*next_start_);
  std::int64_t seen = shared.load(std::memory_order_relaxed);
  std::int64_t start = 0;
  do {
    const bool is_of_now = seen > present && seen - present <= kFarthest.count();
    start = is_of_now ? seen : present;
  } while (!shared.compare_exchange_weak(seen, start + takes.count(), std::memory_order_relaxed));
  return now + std::chrono::nanoseconds(start - present);
}

}  // namespace varve::s3
