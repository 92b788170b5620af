// Locks on the local file system: flock on a file that is removed with the lock, or on one that
// stays.
//
// flock holds as long as any process has the open file. The first kind ends with the process that
// took it (base/process_descriptor.h): a busy child, as a worker that loads data, would keep the
// lock of a trainer that has been killed, and the next job could not save that step. The second
// kind is shared with children: they may go on reading a checkpoint that their parent has opened.

#include <cerrno>
#include <cstring>
#include <optional>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/process_descriptor.h"
#include "storage/posix_files.h"

namespace varve {
namespace {

/// Returns whether `name` is the file that `fd` has open; nothing, with errno, where stat fails.
std::optional<bool> IsFileOf(const std::string& name, int fd) {
  struct stat by_name{};
  struct stat by_fd{};
  if (::stat(name.c_str(), &by_name) != 0 || ::fstat(fd, &by_fd) != 0) {
    return std::nullopt;
  }
  return by_name.st_dev == by_fd.st_dev && by_name.st_ino == by_fd.st_ino;
}

/// Returns true when `name` is known to be the file that `fd` has open.
bool NamesFile(const std::string& name, int fd) { return IsFileOf(name, fd).value_or(false); }

/// An flock on a file that is removed with the lock. Removing it while the lock is held, together
/// with the check in AcquireLock that the name still stands for the locked file, keeps two holders
/// from locking two files of one name.
class PosixLock final : public StorageLock {
 public:
  PosixLock(std::string name, ProcessDescriptor fd) : name_(std::move(name)), fd_(std::move(fd)) {}
  PosixLock(const PosixLock&) = delete;
  PosixLock& operator=(const PosixLock&) = delete;
  ~PosixLock() override {
    // The directory may have been exchanged for another: then the name is not ours to remove. Nor
    // is it a forked child's, whose parent still holds the lock.
    if (owner_ == ::getpid() && NamesFile(name_, fd_.get())) {
      ::unlink(name_.c_str());
    }
  }
  [[nodiscard]] bool HasName() const override {
    const auto has = IsFileOf(name_, fd_.get());
    return has ? *has : errno != ENOENT && errno != ENOTDIR;
  }

 private:
  std::string name_;
  ProcessDescriptor fd_;
  const pid_t owner_ = ::getpid();
};

/// Returns true for the errors of flock that mean that there are no locks of this kind here. EBADF
/// is NFS's, which wants a file that is open for writing.
bool HasNoLocks(int error) {
  return error == ENOTSUP || error == ENOLCK || error == ENOSYS || error == EBADF;
}

/// An flock on a file that stays.
class PosixFileLock final : public StorageLock {
 public:
  explicit PosixFileLock(FileDescriptor fd) : fd_(std::move(fd)) {}

 private:
  FileDescriptor fd_;
};

class FileLocksOfPosix final : public FileLocks {
 public:
  Result<std::unique_ptr<StorageLock>> LockFile(const std::string& name, LockMode mode) override {
    const bool alone = mode == LockMode::kExclusive;
    FileDescriptor fd = OpenDescriptor(name, alone ? O_RDWR : O_RDONLY);
    if (!fd.valid() && alone &&
        (errno == EACCES || errno == EROFS || errno == EPERM || errno == EISDIR)) {
      fd = OpenDescriptor(name, O_RDONLY);
    }
    if (!fd.valid()) {
      return ErrnoStatus("open for a lock", name, errno);
    }
    while (::flock(fd.get(), (alone ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0) {
      const int error = errno;
      if (error == EINTR) {
        continue;
      }
      if (error == EWOULDBLOCK) {
        return FailedPrecondition(name + " is locked by another process");
      }
      return HasNoLocks(error) ? Unimplemented("the file system of " + name +
                                               " has no locks: " + std::strerror(error))
                               : ErrnoStatus("lock", name, error);
    }
    if (!NamesFile(name, fd.get())) {
      return NotFound(name + " has just been replaced or removed");
    }
    return std::unique_ptr<StorageLock>(std::make_unique<PosixFileLock>(std::move(fd)));
  }
};

}  // namespace

FileLocks* PosixFileLocks() {
  static auto* locks = new FileLocksOfPosix();  // As the storage itself.
  return locks;
}

Result<std::unique_ptr<StorageLock>> AcquirePosixLock(const std::string& name) {
  const auto open = [&](int flags) {
    return ProcessDescriptor(OpenDescriptor(name, flags).release());
  };
  // Each attempt but the last fails because another holder has locked and released the name in
  // between.
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    ProcessDescriptor fd = open(O_RDWR | O_CREAT | O_EXCL);
    const bool created = fd.valid();
    if (!created) {
      fd = open(O_RDWR | O_CREAT | O_NOFOLLOW);
    }
    if (!fd.valid()) {
      return ErrnoStatus("create lock", name, errno);
    }
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      if (error == EINTR) {
        continue;
      }
      if (error == EWOULDBLOCK) {
        return FailedPrecondition(name + " is locked by another process");
      }
      if (error == ENOTSUP || error == ENOLCK || error == ENOSYS) {
        if (created) {
          ::unlink(name.c_str());
        }
        return Unimplemented("the file system of " + name +
                             " has no locks: " + std::strerror(error));
      }
      return ErrnoStatus("lock", name, error);
    }
    if (NamesFile(name, fd.get())) {
      return std::unique_ptr<StorageLock>(std::make_unique<PosixLock>(name, std::move(fd)));
    }
  }
  return Unavailable("lock " + name + ": it was taken and given back " + std::to_string(kAttempts) +
                     " times meanwhile");
}

}  // namespace varve
