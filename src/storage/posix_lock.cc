// Locks on the local file system: flock on a file that is removed with the lock.

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "storage/posix_files.h"

namespace varve {
namespace {

/// Returns true when `name` is the file that `fd` has open.
bool NamesFile(const std::string& name, int fd) {
  struct stat by_name{};
  struct stat by_fd{};
  return ::stat(name.c_str(), &by_name) == 0 && ::fstat(fd, &by_fd) == 0 &&
         by_name.st_dev == by_fd.st_dev && by_name.st_ino == by_fd.st_ino;
}

/// An flock on a file that is removed with the lock. Removing it while the lock is held, together
/// with the check in AcquireLock that the name still stands for the locked file, keeps two holders
/// from locking two files of one name.
class PosixLock final : public StorageLock {
 public:
  PosixLock(std::string name, FileDescriptor fd) : name_(std::move(name)), fd_(std::move(fd)) {}
  PosixLock(const PosixLock&) = delete;
  PosixLock& operator=(const PosixLock&) = delete;
  ~PosixLock() override {
    // The directory may have been exchanged for another: then the name is not ours to remove.
    if (NamesFile(name_, fd_.get())) {
      ::unlink(name_.c_str());
    }
  }

 private:
  std::string name_;
  FileDescriptor fd_;
};

}  // namespace

Result<std::unique_ptr<StorageLock>> AcquirePosixLock(const std::string& name) {
  // Each attempt but the last fails because another holder has locked and released the name in
  // between.
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    FileDescriptor fd = OpenDescriptor(name, O_RDWR | O_CREAT | O_EXCL);
    const bool created = fd.valid();
    if (!created) {
      fd = OpenDescriptor(name, O_RDWR | O_CREAT | O_NOFOLLOW);
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
