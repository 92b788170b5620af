#include "storage/cache/block_store.h"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/events.h"
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

/// Makes a directory that this user alone may write to, or checks one that is there.
Status MakePrivate(const std::string& directory) {
  if (::mkdir(directory.c_str(), kOwnerOnly) != 0 && errno != EEXIST) {
    return SystemError("make " + directory, errno);
  }
  struct stat info{};
  if (::lstat(directory.c_str(), &info) != 0) {
    return SystemError(directory, errno);
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 022) != 0) {
    return FailedPrecondition(directory +
                              " is no directory that this user owns and alone may write to");
  }
  return Status::Ok();
}

/// Appends the blocks in a folder, by their paths. Removes temporary files that no process writes
/// any more.
void AppendKept(const std::string& folder, std::vector<DirectoryEntry>* kept) {
  auto listed = PosixStorage().List(folder);
  if (!listed.ok()) {
    return;
  }
  for (DirectoryEntry& entry : *listed) {
    const bool is_new = entry.name.starts_with(kNewPrefix);
    entry.name = JoinPath(folder, entry.name);
    if (is_new && ::time(nullptr) - entry.modified_ns / 1'000'000'000 > kForgotten) {
      ::unlink(entry.name.c_str());
      continue;
    }
    kept->push_back(std::move(entry));
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
  ReportEvent([&] {
    return Event{.level = EventLevel::kWarning,
                 .message = "the cache in " + options_.directory +
                            " is not used any more by this process, which reads from the server: " +
                            why.message(),
                 .fields = {{"directory", options_.directory}}};
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
    ReportEvent([&] {
      return Event{
          .level = EventLevel::kWarning,
          .message = "a damaged block of the cache was removed and is fetched again: " + path,
          .fields = {{"directory", options_.directory}}};
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
  if (written.code() == StatusCode::kNotFound) {  // The folder's first block.
    written = MakePrivate(folder);
    if (written.ok()) {
      written = WriteBlockFile(fresh, name, block);
    }
  }
  if (written.ok() && ::rename(fresh.c_str(), PathOf(name).c_str()) != 0) {
    written = SystemError("rename " + fresh, errno);
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
  std::vector<DirectoryEntry> kept;
  for (unsigned int folder = 0; folder < 256; ++folder) {
    AppendKept(JoinPath(root_, FolderName(folder)), &kept);
  }
  std::uint64_t bytes = 0;
  for (const DirectoryEntry& file : kept) {
    bytes += file.size;
  }
  if (bytes <= options_.max_bytes / 16 * 15) {
    return true;
  }
  std::sort(kept.begin(), kept.end(),
            [](const auto& a, const auto& b) { return a.modified_ns < b.modified_ns; });
  for (const DirectoryEntry& file : kept) {
    if (bytes <= options_.max_bytes / 8 * 7) {
      break;
    }
    if (BaseName(file.name).starts_with(kNewPrefix)) {
      continue;  // A process writes it.
    }
    ::unlink(file.name.c_str());
    bytes -= file.size;
  }
  return true;
}

}  // namespace varve::cache
