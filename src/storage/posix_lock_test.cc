// Locks of the local file system and the processes that hold them.

#include <array>
#include <csignal>
#include <functional>
#include <memory>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file_descriptor.h"
#include "storage/posix_files.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {
namespace {

using test::FailsWith;
using test::IsOk;

using TakeLock = std::function<Result<std::unique_ptr<StorageLock>>()>;

/// Takes a lock in a child process, which forks a child of its own and is then killed. The latter
/// child lives until the returned end of a pipe is closed: it stands for a worker that loads data.
FileDescriptor KillTheHolderOf(const TakeLock& take) {
  std::array<int, 2> ends{};
  std::array<int, 2> begun{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  EXPECT_EQ(::pipe(begun.data()), 0);
  char byte = 0;
  const ::pid_t holder = ::fork();
  if (holder == 0) {
    ::close(ends[1]);
    const auto lock = take();
    if (!lock.ok()) {
      ::_exit(1);
    }
    if (::fork() == 0) {
      (void)!::write(begun[1], "!", 1);
      (void)!::read(ends[0], &byte, 1);
      ::_exit(0);
    }
    (void)!::read(begun[0], &byte, 1);
    (void)::raise(SIGKILL);
  }
  for (const int end : {ends[0], begun[0], begun[1]}) {
    ::close(end);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(holder, &status, 0), holder);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the child did not get the lock";
  return FileDescriptor(ends[1]);
}

TEST(PosixLock, EndsWithItsHolderThoughAForkedChildLives) {
  const test::TempDir dir;
  const TakeLock take = [&] { return AcquirePosixLock(dir / ".lock"); };
  const FileDescriptor worker = KillTheHolderOf(take);
  EXPECT_TRUE(IsOk(take()));
}

TEST(PosixLock, OfAFileThatStaysIsSharedWithForkedChildren) {
  const test::TempDir dir;
  ASSERT_TRUE(IsOk(WriteWholeFile(PosixStorage(), dir / "file", "bytes", true)));
  const TakeLock take = [&] {
    return PosixFileLocks()->LockFile(dir / "file", LockMode::kExclusive);
  };
  const FileDescriptor worker = KillTheHolderOf(take);
  EXPECT_TRUE(FailsWith(take(), StatusCode::kFailedPrecondition, {"file"}));
}

TEST(PosixLock, OfAParentIsNotReleasedByItsForkedChild) {
  const test::TempDir dir;
  auto lock = AcquirePosixLock(dir / ".lock");
  ASSERT_TRUE(IsOk(lock));
  const ::pid_t child = ::fork();
  if (child == 0) {
    lock->reset();
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(FailsWith(AcquirePosixLock(dir / ".lock"), StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace varve
