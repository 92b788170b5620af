// Files of the local file system: content is made durable by fdatasync.

#include "storage/posix_files.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>

#include "base/checked.h"
#include "base/file_limit.h"

namespace varve {

namespace {

Status WithCodeOf(std::string_view action, const std::string& name, int error) {
  std::string message = std::string(action) + " " + name + ": " + std::strerror(error) +
                        " (errno " + std::to_string(error) + ")";
  switch (error) {
    case ENOENT: return NotFound(std::move(message));
    case EEXIST:
    case ENOTEMPTY: return AlreadyExists(std::move(message));
    case EDQUOT:
      return {StatusCode::kOutOfSpace,
              message +
                  "; the quota of this user, group or project on the file system is used up: "
                  "remove files, or have it raised"};
    case ENOSPC:
      return {StatusCode::kOutOfSpace,
              message + "; the file system is full: remove files, old steps with `varve prune`"};
    case EFBIG:
      return {StatusCode::kOutOfSpace,
              message +
                  "; the file is larger than this process may write, raise the limit (ulimit -f), "
                  "or than the file system allows"};
    case EMFILE:
      return Unavailable(message + "; raise this process's limit of open files (ulimit -n)");
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case EINVAL: return InvalidArgument(std::move(message));
    default: return Unavailable(std::move(message));
  }
}

}  // namespace

/// Returns an errno as a Status that names the action and the file.
Status ErrnoStatus(std::string_view action, const std::string& name, int error) {
  return WithCodeOf(action, name, error).With({.path = name, .system_error = error});
}

FileDescriptor OpenDescriptor(const std::string& name, int flags) {
  int fd = -1;
  do {
    fd = ::open(name.c_str(), flags | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  return FileDescriptor(fd);
}

namespace {

/// No write crosses a multiple of it. ext4 holds at most 32767 blocks (of 4 KiB: 4 KiB less than
/// 128 MiB) in an extent that was allocated and not yet written. A direct write over two extents
/// takes the lock of the file for itself: it waits for all other writes and lets none begin.
/// Measured with files of 1 GiB: 6 % of the time of the writes. Files are allocated in steps of
/// this size, too, so that extents end there; a multiple of the pipeline's blocks, so that few
/// writes are cut.
constexpr std::uint64_t kExtentBytes = std::uint64_t{120} << 20;

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(std::string name, FileDescriptor fd, bool direct)
      : name_(std::move(name)), fd_(std::move(fd)), direct_(direct) {}

  Status WriteAt(std::uint64_t offset, std::span<const std::byte> data) override {
    if (ExceedsFileLimit(offset + data.size())) {
      return ErrnoStatus("write at byte " + std::to_string(offset) + " of", name_, EFBIG);
    }
    if (direct_ && (offset % kDirectAlignment != 0 || data.size() % kDirectAlignment != 0)) {
      return InvalidArgument("write at byte " + std::to_string(offset) + " of " + name_ + ": " +
                             std::to_string(data.size()) + " bytes are no whole pages");
    }
    while (!data.empty()) {
      const std::size_t size =
          std::min<std::uint64_t>(data.size(), kExtentBytes - offset % kExtentBytes);
      const bool direct = direct_;
      const ssize_t written = ::pwrite(fd_.get(), data.data(), size, static_cast<off_t>(offset));
      if (written < 0) {
        if (errno == EINTR || (errno == EINVAL && direct && LeaveDirect())) {
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
    const auto present = static_cast<std::uint64_t>(info.st_size);
    if (present < size && ExceedsFileLimit(size)) {
      return ErrnoStatus("set the size of", name_, EFBIG);
    }
    if (present != size && ::ftruncate(fd_.get(), static_cast<off_t>(size)) != 0) {
      return ErrnoStatus("set the size of", name_, errno);
    }
    if (::fdatasync(fd_.get()) != 0) {
      return ErrnoStatus("sync", name_, errno);
    }
    return Status::Ok();
  }

  [[nodiscard]] bool direct() const override { return direct_; }

 private:
  /// Makes later writes go through the page cache. Returns false if the file cannot be opened anew.
  /// A file system may refuse an aligned direct write: mergerfs passes parts of it on that are not
  /// aligned. Every disk refuses memory that is not aligned, and the rest of a write that it cut
  /// short.
  bool LeaveDirect() {
    // Opened anew: mergerfs keeps the file below as it was opened. Writes of other threads that are
    // under way end with the old one.
    const FileDescriptor buffered = OpenDescriptor(name_, O_WRONLY | O_NOFOLLOW);
    if (!buffered.valid() || ::dup3(buffered.get(), fd_.get(), O_CLOEXEC) < 0) {
      return false;
    }
    direct_ = false;
    return true;
  }

  std::string name_;
  FileDescriptor fd_;
  std::atomic<bool> direct_;
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

/// Allocates the file's blocks, which sets its size. Leaves out what another process has allocated
/// of a shared file: the call would wait for all writes of that process. Errors: errno, OutOfSpace
/// for ENOSPC.
Status Preallocate(int fd, const std::string& name, std::uint64_t size, bool shared) {
  struct statfs system{};
  struct stat info{};
  const bool in_steps = ::fstatfs(fd, &system) == 0 && system.f_type == EXT4_SUPER_MAGIC;
  const std::uint64_t length = RoundUp(size, kDirectAlignment);
  if (ExceedsFileLimit(length)) {
    return ErrnoStatus("preallocate " + std::to_string(size) + " bytes for", name, EFBIG);
  }
  for (std::uint64_t at = 0; at < length;) {
    const std::uint64_t step = in_steps ? std::min(length - at, kExtentBytes) : length;
    if (shared && ::fstat(fd, &info) == 0 &&
        static_cast<std::uint64_t>(info.st_size) >= at + step) {
      at += step;
      continue;
    }
    // Without blocks every write extends the file under the inode lock. EOPNOTSUPP is
    // no error: it only costs speed. ENOSPC is: better before the first byte than after.
    if (::fallocate(fd, 0, static_cast<off_t>(at), static_cast<off_t>(step)) != 0) {
      return errno == EOPNOTSUPP || errno == ENOSYS || errno == EINTR
                 ? Status::Ok()
                 : ErrnoStatus("preallocate " + std::to_string(size) + " bytes for", name, errno);
    }
    at += step;
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<WritableFile>> OpenPosixForWrite(const std::string& name,
                                                        const WriteOptions& options) {
  // Another user may have put a link in the file's place; Varve does not write to the link's
  // target.
  const int flags = O_WRONLY | O_CREAT | O_NOFOLLOW |
                    (options.shared      ? 0
                     : options.exclusive ? O_EXCL
                                         : O_TRUNC);
  bool direct = options.direct;
  FileDescriptor fd = OpenDescriptor(name, flags | (direct ? O_DIRECT : 0));
  if (!fd.valid() && direct && errno == EINVAL) {
    // tmpfs before Linux 6.6 and some FUSE mounts refuse O_DIRECT. The failed open may have
    // left the file behind, hence no O_EXCL the second time.
    direct = false;
    fd = OpenDescriptor(name, (flags & ~O_EXCL) | (options.shared ? 0 : O_TRUNC));
  }
  if (!fd.valid()) {
    return ErrnoStatus("create", name, errno);
  }
  if (options.size > 0) {
    VARVE_RETURN_IF_ERROR(Preallocate(fd.get(), name, options.size, options.shared));
  }
  return std::unique_ptr<WritableFile>(
      std::make_unique<PosixWritableFile>(name, std::move(fd), direct));
}

Result<std::unique_ptr<ReadableFile>> OpenPosixForRead(const std::string& name) {
  // O_NONBLOCK: a named pipe would wait for a writer before it can be refused.
  constexpr int kFlags = O_RDONLY | O_NONBLOCK | O_NOCTTY;
  FileDescriptor fd = OpenDescriptor(name, kFlags);
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
      OpenDescriptor(name, kFlags | O_DIRECT);  // Invalid where refused; that is fine.
  return std::unique_ptr<ReadableFile>(std::make_unique<PosixReadableFile>(
      name, std::move(fd), std::move(direct), static_cast<std::uint64_t>(info.st_size)));
}

}  // namespace varve
