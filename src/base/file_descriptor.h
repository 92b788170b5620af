/// A file descriptor that is closed with its owner.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "varve/status.h"

namespace varve {

/// Move-only; -1 when it holds none.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  /// Gives the descriptor to the caller, who closes it.
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// Returns the error of a system call that failed with `error` (errno): Unavailable, but
/// FailedPrecondition where this process has no descriptors left.
inline Status SystemError(const std::string& what, int error) {
  const std::string message = what + ": " + std::strerror(error);
  return (error == EMFILE ? FailedPrecondition(
                                message + "; raise this process's limit of open files (ulimit -n)")
                          : Unavailable(message))
      .With({.system_error = error});
}

/// Returns another descriptor of the same file, which is closed on exec.
inline Result<FileDescriptor> Duplicate(int fd) {
  FileDescriptor copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  return copy.valid() ? Result<FileDescriptor>(std::move(copy))
                      : SystemError("duplicate a file descriptor", errno);
}

}  // namespace varve
