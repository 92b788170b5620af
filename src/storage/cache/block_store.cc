#include "storage/cache/block_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/events.h"
#include "base/guarded.h"
#include "base/stop.h"
#include "base/time_source.h"
#include "varve/stop.h"
#include "varve/storage.h"

namespace varve::cache {
namespace {

constexpr mode_t kOwnerOnly = 0700;
constexpr std::uint64_t kLocks = 1024;
constexpr std::string_view kNewPrefix = ".new-";
constexpr std::time_t kForgotten = 3600;

std::string Hex(std::span<const std::uint8_t> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Status ErrorOf(const std::string& what, int error) {
  return Unavailable(what + ": " + std::strerror(error));
}

/// Makes a directory that this user alone may write to, or checks one that is there.
Status MakePrivate(const std::string& directory) {
  if (::mkdir(directory.c_str(), kOwnerOnly) != 0 && errno != EEXIST) {
    return ErrorOf("make " + directory, errno);
  }
  struct stat info{};
  if (::lstat(directory.c_str(), &info) != 0) {
    return ErrorOf(directory, errno);
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 022) != 0) {
    return FailedPrecondition(directory +
                              " is no directory that this user owns and alone may write to");
  }
  return Status::Ok();
}

/// A file of the store, as eviction sees it.
struct Kept {
  timespec used;
  std::uint64_t bytes;
  std::string path;
};

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

/// Appends the blocks in a folder. Removes temporary files that no process writes any more.
void AppendKept(const std::string& folder, std::vector<Kept>* kept) {
  const std::unique_ptr<DIR, CloseDirectory> directory(::opendir(folder.c_str()));
  if (directory == nullptr) {
    return;
  }
  while (const dirent* const entry = ::readdir(directory.get())) {
    const std::string_view name(entry->d_name);
    struct stat info{};
    if (name == "." || name == ".." ||
        ::fstatat(::dirfd(directory.get()), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
      continue;
    }
    std::string path = JoinPath(folder, name);
    if (name.starts_with(kNewPrefix) && ::time(nullptr) - info.st_mtim.tv_sec > kForgotten) {
      ::unlink(path.c_str());
      continue;
    }
    kept->push_back({info.st_mtim, static_cast<std::uint64_t>(info.st_size), std::move(path)});
  }
}

std::string FolderName(unsigned int number) {
  const auto byte = static_cast<std::uint8_t>(number);
  return Hex(std::span(&byte, 1));
}

}  // namespace

BlockStore::BlockStore(CacheOptions options)
    : options_(std::move(options)),
      root_(JoinPath(options_.directory, "varve-blocks-1")),
      written_(options_.max_bytes) {  // The first block looks how full it is.
  ::mkdir(options_.directory.c_str(), kOwnerOnly);
  Status made = MakePrivate(root_);
  if (made.ok()) {
    made = MakePrivate(JoinPath(root_, "locks"));
  }
  if (!made.ok()) {
    SwitchOff(made);
  }
}

void BlockStore::SwitchOff(const Status& why) {
  if (!usable_.exchange(false)) {
    return;
  }
  (void)Guarded([&] {
    ReportEvent({.level = EventLevel::kWarning,
                 .message = "the cache in " + options_.directory +
                            " is not used any more by this process, which reads from the server: " +
                            why.message(),
                 .fields = {{"directory", options_.directory}}});
    return Status::Ok();
  });
}

std::string BlockStore::FolderOf(const BlockName& name) const {
  return JoinPath(root_, FolderName(name.file.bytes[0]));
}

std::string BlockStore::PathOf(const BlockName& name) const {
  return JoinPath(FolderOf(name), Hex(name.file.bytes) + "-" + std::to_string(name.index));
}

bool BlockStore::Read(const BlockName& name, std::span<std::byte> block) {
  const std::string path = PathOf(name);
  const Found found = ReadBlockFile(path, name, block);
  if (found == Found::kDamaged) {
    ::unlink(path.c_str());
    (void)Guarded([&] {
      ReportEvent(
          {.level = EventLevel::kWarning,
           .message = "a damaged block of the cache was removed and is fetched again: " + path,
           .fields = {{"directory", options_.directory}}});
      return Status::Ok();
    });
  }
  return found == Found::kWhole;
}

bool BlockStore::Remove(const BlockName& name) { return ::unlink(PathOf(name).c_str()) == 0; }

void BlockStore::Write(const BlockName& name, std::span<const std::byte> block) {
  if (!usable()) {
    return;
  }
  const std::string folder = FolderOf(name);
  const std::string fresh =
      JoinPath(folder, std::string(kNewPrefix) + std::to_string(::getpid()) + "-" +
                           std::to_string(Now().time_since_epoch().count()) + "-" +
                           std::to_string(names_.fetch_add(1)));
  Status written = WriteBlockFile(fresh, name, block);
  if (written.code() == StatusCode::kUnavailable) {  // The folder's first block.
    written = MakePrivate(folder);
    if (written.ok()) {
      written = WriteBlockFile(fresh, name, block);
    }
  }
  if (written.ok() && ::rename(fresh.c_str(), PathOf(name).c_str()) != 0) {
    written = ErrorOf("rename " + fresh, errno);
    ::unlink(fresh.c_str());
  }
  if (!written.ok()) {
    SwitchOff(written);
    return;
  }
  if (written_.fetch_add(block.size() + kBlockHeaderBytes) >= options_.max_bytes / 64) {
    written_ = 0;
    Shrink();
  }
}

CacheLock::~CacheLock() {
  if (file_.valid()) {
    (void)::flock(file_.get(), LOCK_UN);
  }
}

Result<CacheLock> BlockStore::LockGroup(const BlockName& name) {
  constexpr std::chrono::milliseconds kFirst{1};
  constexpr std::chrono::milliseconds kLongest{20};
  const std::string group =
      Hex(name.file.bytes) + std::to_string(name.index / options_.group_blocks);
  const std::uint64_t number = Crc32c(AsByteSpan(group)) % kLocks;
  FileDescriptor file(::open(JoinPath(JoinPath(root_, "locks"), std::to_string(number)).c_str(),
                             O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) {
    return CacheLock();
  }
  const TimePoint begun = Now();
  const std::stop_token stop = CurrentStop();
  for (std::chrono::milliseconds wait = kFirst; ::flock(file.get(), LOCK_EX | LOCK_NB) != 0;
       wait = std::min(2 * wait, kLongest)) {
    if ((errno != EWOULDBLOCK && errno != EINTR) || Now() - begun > options_.time_limit) {
      return CacheLock();
    }
    VARVE_RETURN_IF_ERROR(CheckStop(stop));
    SleepFor(wait);
  }
  return CacheLock(std::move(file));
}

// A thread that finds another one at it leaves its request: that one may have listed the folder
// before this thread's block was in it, so it lists anew before it ends.
void BlockStore::Shrink() {
  ++requests_;
  std::uint64_t seen = 0;
  do {
    seen = requests_;
    if (!ShrinkOnce()) {
      return;
    }
  } while (requests_ != seen);
}

bool BlockStore::ShrinkOnce() {
  FileDescriptor lock_file(::open(JoinPath(JoinPath(root_, "locks"), "shrink").c_str(),
                                  O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_file.valid() || ::flock(lock_file.get(), LOCK_EX | LOCK_NB) != 0) {
    return false;  // Another thread or process does it.
  }
  const CacheLock lock(std::move(lock_file));
  std::vector<Kept> kept;
  for (unsigned int folder = 0; folder < 256; ++folder) {
    AppendKept(JoinPath(root_, FolderName(folder)), &kept);
  }
  std::uint64_t bytes = 0;
  for (const Kept& file : kept) {
    bytes += file.bytes;
  }
  if (bytes <= options_.max_bytes / 16 * 15) {
    return true;
  }
  std::sort(kept.begin(), kept.end(), [](const Kept& a, const Kept& b) {
    return a.used.tv_sec != b.used.tv_sec ? a.used.tv_sec < b.used.tv_sec
                                          : a.used.tv_nsec < b.used.tv_nsec;
  });
  for (const Kept& file : kept) {
    if (bytes <= options_.max_bytes / 8 * 7) {
      break;
    }
    if (BaseName(file.path).starts_with(kNewPrefix)) {
      continue;  // A process writes it.
    }
    ::unlink(file.path.c_str());
    bytes -= file.bytes;
  }
  return true;
}

}  // namespace varve::cache
