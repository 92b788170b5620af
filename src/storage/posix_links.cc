// The local file system's links, and directories that are removed only when they are empty.

#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "storage/posix_files.h"

namespace varve {
namespace {

/// Returns true for the errors of link(2) that mean "not this file, or not there": another file
/// system below the directory, another user's file that may not be linked, a count that is full.
bool CannotBeLinked(int error) {
  return error == EPERM || error == EXDEV || error == EMLINK || error == EOPNOTSUPP ||
         error == ENOSYS || error == EINVAL;
}

class PosixLinks final : public HardLinks, public SymbolicLinks, public EmptyDirectories {
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

  Status RemoveEmpty(const std::string& name) override {
    if (::rmdir(name.c_str()) == 0 || errno == ENOENT) {
      return Status::Ok();
    }
    return ErrnoStatus("remove directory", name, errno);
  }
};

}  // namespace

StorageExtras PosixExtras() {
  static auto* links = new PosixLinks();  // As the storage itself.
  return {links, links, links, PosixFileLocks()};
}

}  // namespace varve
