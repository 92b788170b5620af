#include "storage/s3/traffic/node_slots.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace varve::s3 {
namespace {

/// Locks or unlocks a byte for this open file. Returns 0 or errno.
int SetLock(int descriptor, int slot, short kind) {
  struct flock lock{};
  lock.l_type = kind;
  lock.l_whence = SEEK_SET;
  lock.l_start = slot;
  lock.l_len = 1;
  return ::fcntl(descriptor, F_OFD_SETLK, &lock) == 0 ? 0 : errno;
}

}  // namespace

std::string NodeFile(std::string_view what) {
  const bool shared = ::access("/dev/shm", W_OK) == 0;
  return std::string(shared ? "/dev/shm" : "/tmp") + "/varve-s3-" + std::string(what) + "-" +
         std::to_string(::getuid());
}

NodeSlots::NodeSlots(std::string file, int count)
    : file_(std::move(file)), taken_(static_cast<std::size_t>(std::max(count, 0)), false) {}

NodeSlots::~NodeSlots() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

/// Called with the lock held.
Status NodeSlots::Open() {
  if (descriptor_ >= 0 && process_ == ::getpid()) {
    return Status::Ok();
  }
  if (descriptor_ >= 0) {
    ::close(descriptor_);  // The parent keeps its own.
    std::fill(taken_.begin(), taken_.end(), false);
  }
  constexpr int kMode = 0600;
  descriptor_ = ::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kMode);
  process_ = ::getpid();
  if (descriptor_ < 0) {
    return FailedPrecondition("open " + file_ + ": " + std::strerror(errno) +
                              "; VARVE_S3_MAX_CONNECTIONS_PER_NODE needs this file: remove it, or "
                              "do not set the limit");
  }
  next_ = static_cast<std::size_t>(process_) % taken_.size();
  return Status::Ok();
}

Result<std::optional<int>> NodeSlots::TryTake() {
  const std::scoped_lock lock(mutex_);
  VARVE_RETURN_IF_ERROR(Open());
  for (std::size_t i = 0; i < taken_.size(); ++i) {
    const std::size_t slot = (next_ + i) % taken_.size();
    if (taken_[slot]) {
      continue;
    }
    const int error = SetLock(descriptor_, static_cast<int>(slot), F_WRLCK);
    if (error == 0) {
      taken_[slot] = true;
      next_ = slot + 1;
      return std::optional(static_cast<int>(slot));
    }
    if (error != EAGAIN && error != EACCES && error != EINTR) {
      return FailedPrecondition("lock " + file_ + ": " + std::strerror(error));
    }
  }
  return std::optional<int>();
}

void NodeSlots::GiveBack(int slot) {
  const std::scoped_lock lock(mutex_);
  if (process_ != ::getpid()) {
    return;
  }
  (void)SetLock(descriptor_, slot, F_UNLCK);
  taken_[static_cast<std::size_t>(slot)] = false;
}

}  // namespace varve::s3
