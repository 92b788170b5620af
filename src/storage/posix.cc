// The local file system. Durability rules: content by fdatasync, names by fsync of their directory.

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/checked.h"
#include "varve/storage.h"

namespace varve {
namespace {

/// An errno as a Status that says what was being done to which file.
Status ErrnoStatus(std::string_view action, const std::string& name, int error) {
  std::string message = std::string(action) + " " + name + ": " + std::strerror(error) +
                        " (errno " + std::to_string(error) + ")";
  switch (error) {
    case ENOENT: return NotFound(std::move(message));
    case EEXIST:
    case ENOTEMPTY: return AlreadyExists(std::move(message));
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return {StatusCode::kOutOfSpace, std::move(message)};
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOTDIR:
    case EISDIR:
    case ENAMETOOLONG:
    case EINVAL: return InvalidArgument(std::move(message));
    default: return Unavailable(std::move(message));
  }
}

class FileDescriptor {
 public:
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

 private:
  int fd_;
};

FileDescriptor Open(const std::string& name, int flags, mode_t mode = 0666) {
  int fd = -1;
  do {
    fd = ::open(name.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return FileDescriptor(fd);
}

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(std::string name, FileDescriptor fd, bool direct)
      : name_(std::move(name)), fd_(std::move(fd)), direct_(direct) {}

  Status WriteAt(std::uint64_t offset, std::span<const std::byte> data) override {
    while (!data.empty()) {
      const ssize_t written =
          ::pwrite(fd_.get(), data.data(), data.size(), static_cast<off_t>(offset));
      if (written < 0) {
        if (errno == EINTR) {
          continue;
        }
        return ErrnoStatus("write at byte " + std::to_string(offset) + " of", name_, errno);
      }
      if (written == 0) {
        return Unavailable("write at byte " + std::to_string(offset) + " of " + name_ +
                           ": the file system accepted no bytes");
      }
      data = data.subspan(static_cast<std::size_t>(written));
      offset += static_cast<std::uint64_t>(written);
    }
    return Status::Ok();
  }

  Status Sync(std::uint64_t size) override {
    struct stat info{};
    if (::fstat(fd_.get(), &info) != 0) {
      return ErrnoStatus("stat", name_, errno);
    }
    if (static_cast<std::uint64_t>(info.st_size) != size &&
        ::ftruncate(fd_.get(), static_cast<off_t>(size)) != 0) {
      return ErrnoStatus("set the size of", name_, errno);
    }
    if (::fdatasync(fd_.get()) != 0) {
      return ErrnoStatus("sync", name_, errno);
    }
    return Status::Ok();
  }

  [[nodiscard]] bool direct() const override { return direct_; }

 private:
  std::string name_;
  FileDescriptor fd_;
  bool direct_;
};

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(std::string name, FileDescriptor fd, FileDescriptor direct_fd,
                    std::uint64_t size)
      : name_(std::move(name)), fd_(std::move(fd)), direct_fd_(std::move(direct_fd)), size_(size) {}

  [[nodiscard]] std::uint64_t size() const override { return size_; }

  Status ReadAt(std::uint64_t offset, std::span<const std::span<std::byte>> parts) override {
    std::array<iovec, 64> vectors{};
    std::size_t next = 0;
    std::size_t skip = 0;  // Bytes of parts[next] already read.
    while (next < parts.size()) {
      std::size_t count = 0;
      for (std::size_t i = next; i < parts.size() && count < vectors.size(); ++i) {
        const std::size_t done = i == next ? skip : 0;
        if (parts[i].size() > done) {
          vectors[count++] = {parts[i].data() + done, parts[i].size() - done};
        }
      }
      if (count == 0) {
        return Status::Ok();
      }
      const ssize_t got =
          ::preadv(fd_.get(), vectors.data(), static_cast<int>(count), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) {
        continue;
      }
      VARVE_RETURN_IF_ERROR(CheckGot(got, offset));
      offset += static_cast<std::uint64_t>(got);
      auto left = static_cast<std::size_t>(got);
      while (next < parts.size() && parts[next].size() - skip <= left) {
        left -= parts[next].size() - skip;
        skip = 0;
        ++next;
      }
      skip += left;
    }
    return Status::Ok();
  }

  Status ReadUncached(std::uint64_t offset, std::byte* buffer, std::uint64_t size,
                      std::uint64_t capacity) override {
    const std::uint64_t want = std::min(RoundUp(size, kDirectAlignment), capacity);
    std::uint64_t done = 0;
    while (done < size) {
      const bool use_direct = direct_fd_.valid() && done % kDirectAlignment == 0;
      const ssize_t got =
          ::pread(use_direct ? direct_fd_.get() : fd_.get(), buffer + done,
                  use_direct ? want - done : size - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) {
        continue;
      }
      if (got < 0 && errno == EINVAL && use_direct) {
        return ReadAt(offset,
                      std::array{std::span(buffer, size)});  // Stricter alignment: buffer it.
      }
      VARVE_RETURN_IF_ERROR(CheckGot(got, offset + done));
      done += static_cast<std::uint64_t>(got);
    }
    return Status::Ok();
  }

  [[nodiscard]] bool IsCached(std::uint64_t offset, std::uint64_t size) override {
    // Sampled at both ends and in the middle: page by page would cost as much as reading.
    std::byte probe{};
    iovec vector{&probe, 1};
    for (const std::uint64_t at : {offset, offset + size / 2, offset + size - (size > 0 ? 1 : 0)}) {
      if (::preadv2(fd_.get(), &vector, 1, static_cast<off_t>(at), RWF_NOWAIT) != 1) {
        // Where RWF_NOWAIT is unknown, say cached: buffered reads are right everywhere.
        return errno == EOPNOTSUPP || errno == ENOSYS;
      }
    }
    return true;
  }

 private:
  Status CheckGot(ssize_t got, std::uint64_t offset) const {
    if (got < 0) {
      return ErrnoStatus("read at byte " + std::to_string(offset) + " of", name_, errno);
    }
    if (got == 0) {
      return DataLoss(name_ + ": ends at byte " + std::to_string(offset) + ", " +
                      std::to_string(size_) + " expected");
    }
    return Status::Ok();
  }

  std::string name_;
  FileDescriptor fd_;
  FileDescriptor direct_fd_;
  std::uint64_t size_;
};

/// True when `name` is the file that `fd` has open.
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

Result<std::unique_ptr<StorageLock>> AcquireLock(const std::string& name) {
  // Each turn but the last means that another holder came and went in between.
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    FileDescriptor fd = Open(name, O_RDWR | O_CREAT | O_EXCL);
    const bool created = fd.valid();
    if (!created) {
      fd = Open(name, O_RDWR | O_CREAT);
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

class PosixStorageImpl final : public Storage {
 public:
  Result<std::unique_ptr<WritableFile>> OpenForWrite(const std::string& name,
                                                     const WriteOptions& options) override {
    const int flags = O_WRONLY | O_CREAT | (options.exclusive ? O_EXCL : O_TRUNC);
    bool direct = options.direct;
    FileDescriptor fd = Open(name, flags | (direct ? O_DIRECT : 0));
    if (!fd.valid() && direct && errno == EINVAL) {
      // tmpfs before Linux 6.6 and some FUSE mounts refuse O_DIRECT. The failed open may have
      // left the file behind, hence no O_EXCL the second time.
      direct = false;
      fd = Open(name, (flags & ~O_EXCL) | O_TRUNC);
    }
    if (!fd.valid()) {
      return ErrnoStatus("create", name, errno);
    }
    if (options.size > 0) {
      // Without preallocation every write extends the file under the inode lock. EOPNOTSUPP is
      // no error: it only costs speed. ENOSPC is: better before the first byte than after.
      const auto length = static_cast<off_t>(RoundUp(options.size, kDirectAlignment));
      if (::fallocate(fd.get(), 0, 0, length) != 0 && errno != EOPNOTSUPP && errno != ENOSYS &&
          errno != EINTR) {
        return ErrnoStatus("preallocate " + std::to_string(options.size) + " bytes for", name,
                           errno);
      }
    }
    return std::unique_ptr<WritableFile>(
        std::make_unique<PosixWritableFile>(name, std::move(fd), direct));
  }

  Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& name) override {
    FileDescriptor fd = Open(name, O_RDONLY);
    if (!fd.valid()) {
      return ErrnoStatus("open", name, errno);
    }
    struct stat info{};
    if (::fstat(fd.get(), &info) != 0) {
      return ErrnoStatus("stat", name, errno);
    }
    if (!S_ISREG(info.st_mode)) {
      return InvalidArgument("open " + name + ": not a regular file");
    }
    FileDescriptor direct =
        Open(name, O_RDONLY | O_DIRECT);  // Invalid where refused; that is fine.
    return std::unique_ptr<ReadableFile>(std::make_unique<PosixReadableFile>(
        name, std::move(fd), std::move(direct), static_cast<std::uint64_t>(info.st_size)));
  }

  Result<std::vector<DirectoryEntry>> List(const std::string& directory) override {
    DIR* stream = ::opendir(directory.c_str());
    if (stream == nullptr) {
      return ErrnoStatus("list", directory, errno);
    }
    std::vector<DirectoryEntry> entries;
    const int fd = ::dirfd(stream);
    errno = fd < 0 ? EBADF : 0;
    while (const dirent* item = fd < 0 ? nullptr : ::readdir(stream)) {
      const std::string name = item->d_name;
      struct stat info{};
      const bool gone = name == "." || name == ".." ||
                        ::fstatat(fd, item->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
                        // A link to nowhere holds no checkpoint.
                        (S_ISLNK(info.st_mode) && ::fstatat(fd, item->d_name, &info, 0) != 0);
      errno = 0;  // readdir tells its end from an error by this alone.
      if (!gone) {
        entries.push_back({name, S_ISDIR(info.st_mode), static_cast<std::uint64_t>(info.st_size),
                           info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec});
      }
    }
    const int error = errno;
    ::closedir(stream);
    if (error != 0) {
      return ErrnoStatus("list", directory, error);
    }
    std::sort(entries.begin(), entries.end(),
              [](const DirectoryEntry& a, const DirectoryEntry& b) { return a.name < b.name; });
    return entries;
  }

  Status MakeDirectory(const std::string& name) override {
    if (::mkdir(name.c_str(), 0777) != 0) {
      return ErrnoStatus("make directory", name, errno);
    }
    return Status::Ok();
  }

  Status SyncDirectory(const std::string& name) override {
    const FileDescriptor fd = Open(name, O_RDONLY | O_DIRECTORY);
    // Some network file systems answer EINVAL: they make names durable on their own.
    if (!fd.valid() || (::fsync(fd.get()) != 0 && errno != EINVAL)) {
      return ErrnoStatus("sync directory", name, errno);
    }
    return Status::Ok();
  }

  Status Rename(const std::string& from, const std::string& to, RenameMode mode) override {
    const unsigned flags = mode == RenameMode::kExchange    ? RENAME_EXCHANGE
                           : mode == RenameMode::kNoReplace ? RENAME_NOREPLACE
                                                            : 0;
    if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0) {
      return Status::Ok();
    }
    const bool unsupported = errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP;
    if (unsupported && mode == RenameMode::kExchange) {
      return Unimplemented("the file system of " + to + " cannot exchange two names");
    }
    if (unsupported && mode == RenameMode::kNoReplace) {
      // Plain rename never replaces a directory that holds anything, which is all we publish.
      struct stat info{};
      if (::lstat(to.c_str(), &info) == 0) {
        return ErrnoStatus("rename " + from + " to", to, EEXIST);
      }
      if (::rename(from.c_str(), to.c_str()) == 0) {
        return Status::Ok();
      }
    }
    return ErrnoStatus("rename " + from + " to", to, errno);
  }

  Status Remove(const std::string& name) override {
    if (::unlink(name.c_str()) == 0 || errno == ENOENT) {
      return Status::Ok();
    }
    if (errno != EISDIR && errno != EPERM) {
      return ErrnoStatus("remove", name, errno);
    }
    auto entries = List(name);
    if (!entries.ok()) {
      return entries.status().code() == StatusCode::kNotFound ? Status::Ok() : entries.status();
    }
    for (const DirectoryEntry& entry : *entries) {
      // unlink first, as above: a link is removed, what it points to is not ours.
      VARVE_RETURN_IF_ERROR(Remove(JoinPath(name, entry.name)));
    }
    if (::rmdir(name.c_str()) != 0 && errno != ENOENT) {
      return ErrnoStatus("remove directory", name, errno);
    }
    return Status::Ok();
  }

  Result<std::unique_ptr<StorageLock>> Lock(const std::string& name) override {
    return AcquireLock(name);
  }
};

}  // namespace

Storage& PosixStorage() {
  static auto* storage = new PosixStorageImpl();  // Never destroyed: threads may outlive main.
  return *storage;
}

}  // namespace varve
