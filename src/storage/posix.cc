// The local file system's directories, whose names are made durable by fsync of their directory,
// and its links.

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>
#include <functional>
#include <optional>

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/run_threads.h"
#include "storage/posix_files.h"
#include "varve/storage.h"

namespace varve {
namespace {

/// Returns true for the name that a client of NFS gives a file which is removed while a process of
/// its node has it open. Such a file can be neither moved nor removed, and goes when it is closed.
bool IsKeptByNfs(std::string_view name) {
  constexpr std::string_view kBegin = ".nfs";
  return name.size() == kBegin.size() + 24 && name.starts_with(kBegin) &&
         name.find_first_not_of("0123456789abcdef", kBegin.size()) == std::string_view::npos;
}

/// Returns the sorted names in a directory, links to nowhere too, but not ".", ".." and those that
/// NFS keeps.
Result<std::vector<std::string>> Names(const std::string& directory) {
  DIR* stream = ::opendir(directory.c_str());
  if (stream == nullptr) {
    return ErrnoStatus("list", directory, errno);
  }
  std::vector<std::string> names;
  errno = 0;  // readdir tells its end from an error by this alone.
  while (const dirent* item = ::readdir(stream)) {
    if (const std::string name = item->d_name; name != "." && name != ".." && !IsKeptByNfs(name)) {
      names.push_back(name);
    }
    errno = 0;
  }
  const int error = errno;
  ::closedir(stream);
  if (error != 0) {
    return ErrnoStatus("list", directory, error);
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Removes a directory that is empty; for the rest of one in which NFS keeps files comes `varve gc`.
Status RemoveDirectory(const std::string& name) {
  if (::rmdir(name.c_str()) == 0 || errno == ENOENT) {
    return Status::Ok();
  }
  Status status = ErrnoStatus("remove directory", name, errno);
  const auto names = Names(name);
  return status.code() == StatusCode::kAlreadyExists && names.ok() && names->empty()
             ? Status::Ok()
             : std::move(status);
}

/// Calls `one(i)` for every i below `count`, for names of a directory. Thousands of answers of a
/// network's file system, one after the other and a millisecond each, are seconds.
Status ForNames(std::size_t count, const std::function<Status(std::size_t)>& one) {
  return RunThreadsWhereSlow(count, 16, std::chrono::microseconds(100), one);
}

/// Returns true for the errors of a link's target that is not there, or not for this user.
bool LeadsNowhere(int error) {
  return error == ENOENT || error == ENOTDIR || error == ELOOP || error == EACCES ||
         error == ENAMETOOLONG;
}

/// Finds out what a name in an open directory is; leaves `entry` empty where there is none any more,
/// or it is another user's mount. Any other failure is one of the listing: without this name a reader
/// would take an older step.
Status Look(int fd, const std::string& directory, const std::string& name,
            std::optional<DirectoryEntry>* entry) {
  struct stat info{};
  if (::fstatat(fd, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno == ENOENT || errno == EACCES
               ? Status::Ok()
               : ErrnoStatus("look at", JoinPath(directory, name), errno);
  }
  const bool is_link = S_ISLNK(info.st_mode);
  if (is_link && ::fstatat(fd, name.c_str(), &info, 0) != 0) {
    *entry = {.name = name, .is_link = true};
    return LeadsNowhere(errno) ? Status::Ok()
                               : ErrnoStatus("follow", JoinPath(directory, name), errno);
  }
  *entry = {name, S_ISDIR(info.st_mode), static_cast<std::uint64_t>(info.st_size),
            info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec, is_link};
  return Status::Ok();
}

/// Returns true for the errors of link(2) that mean "not this file, or not there": another file
/// system below the directory, another user's file that may not be linked, a count that is full.
bool CannotBeLinked(int error) {
  return error == EPERM || error == EXDEV || error == EMLINK || error == EOPNOTSUPP ||
         error == ENOSYS || error == EINVAL;
}

class PosixLinks final : public HardLinks,
                         public SymbolicLinks,
                         public EmptyDirectories,
                         public RememberedNames {
 public:
  Status Link(const std::string& from, const std::string& to) override {
    if (::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), 0) == 0) {
      return Status::Ok();
    }
    if (CannotBeLinked(errno)) {
      return Unimplemented("link " + from + " to " + to + ": " +
                           ErrnoStatus("link", from, errno).message());
    }
    return ErrnoStatus("link " + from + " to", to, errno);
  }

  Result<bool> AreOneFile(const std::string& a, const std::string& b) override {
    struct stat of_a{};
    struct stat of_b{};
    if (::lstat(a.c_str(), &of_a) != 0) {
      return ErrnoStatus("stat", a, errno);
    }
    if (::lstat(b.c_str(), &of_b) != 0) {
      return ErrnoStatus("stat", b, errno);
    }
    return of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
  }

  Result<std::string> ReadLink(const std::string& name) override {
    std::array<char, PATH_MAX> target{};
    const ssize_t size = ::readlink(name.c_str(), target.data(), target.size());
    if (size < 0) {
      return ErrnoStatus("read link", name, errno);
    }
    return std::string(target.data(), static_cast<std::size_t>(size));
  }

  Status MakeLink(const std::string& target, const std::string& name) override {
    return ::symlink(target.c_str(), name.c_str()) == 0 ? Status::Ok()
                                                        : ErrnoStatus("make link", name, errno);
  }

  Status RemoveEmpty(const std::string& name) override { return RemoveDirectory(name); }

  void AskAnew(const std::string& directory) override {
    // NFS is consistent from close to open, of directories too: of one that has changed, what is
    // remembered counts no longer.
    const auto open = [&] { return OpenDescriptor(directory, O_RDONLY | O_DIRECTORY).valid(); };
    const std::string parent = ParentPath(directory);
    if (!open() && errno == ENOENT && parent != directory) {
      AskAnew(parent);
      open();
    }
  }
};

/// Never destroyed, as the storage itself.
StorageExtras PosixExtras() {
  static auto* links = new PosixLinks();
  StorageExtras extras{links, links, links, PosixFileLocks()};
  extras.remembered_names = links;
  return extras;
}

class PosixStorageImpl final : public Storage {
 public:
  PosixStorageImpl() : Storage(PosixExtras()) {}

  Result<std::unique_ptr<WritableFile>> OpenForWrite(const std::string& name,
                                                     const WriteOptions& options) override {
    return OpenPosixForWrite(name, options);
  }

  Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& name) override {
    return OpenPosixForRead(name);
  }

  Result<std::vector<DirectoryEntry>> List(const std::string& directory) override {
    VARVE_ASSIGN_OR_RETURN(const auto names, Names(directory));
    const FileDescriptor fd = OpenDescriptor(directory, O_RDONLY | O_DIRECTORY);
    if (!fd.valid()) {
      return ErrnoStatus("list", directory, errno);
    }
    struct stat info{};
    // Of a directory of mode 0644 the names can be read, and every file seems to be gone.
    if (::fstatat(fd.get(), ".", &info, 0) != 0) {
      return ErrnoStatus("search", directory, errno);
    }
    std::vector<std::optional<DirectoryEntry>> found(names.size());
    VARVE_RETURN_IF_ERROR(ForNames(names.size(), [&](std::size_t i) {
      return Look(fd.get(), directory, names[i], &found[i]);
    }));
    std::vector<DirectoryEntry> entries;
    for (std::optional<DirectoryEntry>& entry : found) {
      if (entry.has_value()) {
        entries.push_back(*std::move(entry));
      }
    }
    return entries;
  }

  Status MakeDirectory(const std::string& name) override {
    if (::mkdir(name.c_str(), 0777) != 0) {
      return ErrnoStatus("make directory", name, errno);
    }
    return Status::Ok();
  }

  Status SyncDirectory(const std::string& name) override {
    const FileDescriptor fd = OpenDescriptor(name, O_RDONLY | O_DIRECTORY);
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
      // A file gets the new name before it loses the old one: link never replaces anything.
      if (::link(from.c_str(), to.c_str()) == 0) {
        return ::unlink(from.c_str()) == 0 ? Status::Ok() : ErrnoStatus("remove", from, errno);
      }
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
    auto entries = Names(name);
    if (!entries.ok()) {
      return entries.status().code() == StatusCode::kNotFound ? Status::Ok() : entries.status();
    }
    // unlink first, as above: a link is removed, what it points to is not ours.
    VARVE_RETURN_IF_ERROR(ForNames(
        entries->size(), [&](std::size_t i) { return Remove(JoinPath(name, (*entries)[i])); }));
    return RemoveDirectory(name);
  }

  Result<std::unique_ptr<StorageLock>> Lock(const std::string& name) override {
    return AcquirePosixLock(name);
  }
};

}  // namespace

Storage& PosixStorage() {
  static auto* storage = new PosixStorageImpl();  // Never destroyed: threads may outlive main.
  return *storage;
}

}  // namespace varve
