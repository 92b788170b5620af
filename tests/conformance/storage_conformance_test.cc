// The claims that storages must meet, run against each of them: those of every storage, and those
// of one with directories, renames and locks. storages.h lists the storages.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "conformance/storages.h"

namespace varve::storage_conformance_test {
namespace {

/// Directories, renames, links and locks.
class FileSystemConformance : public StorageConformance {};

TEST_P(StorageConformance, ReadsBackWhatWasWritten) {
  ASSERT_TRUE(IsOk(Write("file", "some bytes")));
  EXPECT_EQ(Read("file"), "some bytes");
}

TEST_P(StorageConformance, ExclusiveOpenRefusesAnExistingFile) {
  ASSERT_TRUE(IsOk(Write("file", "old")));
  EXPECT_TRUE(FailsWith(Write("file", "new"), StatusCode::kAlreadyExists, {"file"}));
  EXPECT_EQ(Read("file"), "old");
}

TEST_P(StorageConformance, OpenWithoutExclusiveTruncates) {
  ASSERT_TRUE(IsOk(Write("file", "something long")));
  ASSERT_TRUE(IsOk(WriteWholeFile(disk(), Path("file"), "short", false)));
  EXPECT_EQ(Read("file"), "short");
}

TEST_P(FileSystemConformance, OpenForWriteNeedsItsDirectory) {
  EXPECT_TRUE(FailsWith(Write("none/file", ""), StatusCode::kNotFound));
}

TEST_P(FileSystemConformance, OpenForReadRefusesWhatIsNoFile) {
  ASSERT_TRUE(IsOk(disk().MakeDirectory(Path("dir"))));
  ASSERT_TRUE(IsOk(Write("file", "")));
  EXPECT_TRUE(FailsWith(disk().OpenForRead(Path("dir")), StatusCode::kInvalidArgument));
  EXPECT_TRUE(FailsWith(disk().OpenForRead(Path("none")), StatusCode::kNotFound));
  EXPECT_TRUE(FailsWith(disk().OpenForRead(Path("file/x")), StatusCode::kInvalidArgument));
}

TEST_P(StorageConformance, DirectWritesLandAndSyncCutsTheTail) {
  std::array<Page, 2> memory;
  memory[0].bytes.fill(std::byte{'x'});
  memory[1].bytes.fill(std::byte{'x'});
  const std::span<const std::byte> pages = std::as_bytes(std::span(memory));
  const auto file = disk().OpenForWrite(Path("file"), {.size = 5000, .direct = true});
  ASSERT_TRUE(IsOk(file));
  // Out of order, as several writers would.
  ASSERT_TRUE(IsOk((*file)->WriteAt(kDirectAlignment, pages.last(kDirectAlignment))));
  ASSERT_TRUE(IsOk((*file)->WriteAt(0, pages.first(kDirectAlignment))));
  ASSERT_TRUE(IsOk((*file)->Sync(5000)));
  EXPECT_EQ(Read("file"), std::string(5000, 'x'));
}

TEST_P(FileSystemConformance, DirectWritesMustBeAligned) {
  const auto file = disk().OpenForWrite(Path("file"), {.direct = true});
  ASSERT_TRUE(IsOk(file));
  if (!(*file)->direct()) {
    GTEST_SKIP() << "this file system refuses direct writes";
  }
  const Page page;
  EXPECT_TRUE(FailsWith((*file)->WriteAt(0, std::span(page.bytes).first(100)),
                        StatusCode::kInvalidArgument));
}

// Disks refuse memory at an odd address, as mergerfs refuses all direct writes.
TEST_P(FileSystemConformance, ADirectWriteThatIsRefusedGoesThroughThePageCache) {
  const auto file = disk().OpenForWrite(Path("file"), {.direct = true});
  ASSERT_TRUE(IsOk(file));
  std::array<Page, 2> memory;
  memory[0].bytes.fill(std::byte{'x'});
  memory[1].bytes.fill(std::byte{'x'});
  const std::span<const std::byte> pages = std::as_bytes(std::span(memory));
  ASSERT_TRUE(IsOk((*file)->WriteAt(0, pages.first(kDirectAlignment))));
  ASSERT_TRUE(IsOk((*file)->WriteAt(kDirectAlignment, pages.subspan(1, kDirectAlignment))));
  const std::uint64_t rest = (*file)->direct() ? kDirectAlignment : 100;
  ASSERT_TRUE(IsOk((*file)->WriteAt(2 * kDirectAlignment, pages.first(rest))));
  ASSERT_TRUE(IsOk((*file)->Sync(2 * kDirectAlignment + 100)));
  EXPECT_EQ(Read("file"), std::string(2 * kDirectAlignment + 100, 'x'));
}

TEST_P(StorageConformance, BytesNeverWrittenReadAsZeros) {
  const auto file = disk().OpenForWrite(Path("file"), {});
  ASSERT_TRUE(IsOk(file));
  const std::string text = "end";
  ASSERT_TRUE(IsOk((*file)->WriteAt(10, std::as_bytes(std::span(text)))));
  ASSERT_TRUE(IsOk((*file)->Sync(15)));
  EXPECT_EQ(Read("file"), std::string(10, '\0') + "end" + std::string(2, '\0'));
}

TEST_P(StorageConformance, ReadAtFillsItsPartsInOrder) {
  ASSERT_TRUE(IsOk(Write("file", "0123456789")));
  const auto file = disk().OpenForRead(Path("file"));
  ASSERT_TRUE(IsOk(file));
  EXPECT_EQ((*file)->size(), 10U);
  std::string first(3, ' ');
  std::string second(4, ' ');
  const std::array<std::span<std::byte>, 3> parts{std::as_writable_bytes(std::span(first)),
                                                  std::span<std::byte>(),
                                                  std::as_writable_bytes(std::span(second))};
  ASSERT_TRUE(IsOk((*file)->ReadAt(2, parts)));
  EXPECT_EQ(first + "," + second, "234,5678");
}

TEST_P(StorageConformance, ReadingPastTheEndIsDataLoss) {
  ASSERT_TRUE(IsOk(Write("file", "0123456789")));
  const auto file = disk().OpenForRead(Path("file"));
  ASSERT_TRUE(IsOk(file));
  Page page;
  EXPECT_TRUE(FailsWith((*file)->ReadAt(8, std::span(page.bytes).first(3)), StatusCode::kDataLoss));
  EXPECT_TRUE(FailsWith((*file)->ReadUncached(0, page.bytes.data(), 11, page.bytes.size()),
                        StatusCode::kDataLoss));
}

TEST_P(StorageConformance, ReadUncachedReadsUpToTheEnd) {
  ASSERT_TRUE(IsOk(Write("file", std::string(4096, 'a') + "tail")));
  const auto file = disk().OpenForRead(Path("file"));
  ASSERT_TRUE(IsOk(file));
  Page page;
  ASSERT_TRUE(IsOk((*file)->ReadUncached(4096, page.bytes.data(), 4, page.bytes.size())));
  EXPECT_EQ(std::memcmp(page.bytes.data(), "tail", 4), 0);
}

TEST_P(StorageConformance, ListIsSortedAndKnowsKindsAndSizes) {
  ASSERT_TRUE(IsOk(Write("b", "12345")));
  ASSERT_TRUE(IsOk(disk().MakeDirectory(Path("c"))));
  ASSERT_TRUE(IsOk(Write("c/file", "")));
  ASSERT_TRUE(IsOk(Write(".a", "")));
  const auto entries = disk().List(Path(""));
  ASSERT_TRUE(IsOk(entries));
  ASSERT_EQ(entries->size(), 3U);
  EXPECT_EQ((*entries)[0].name, ".a");
  EXPECT_EQ((*entries)[1].name, "b");
  EXPECT_EQ((*entries)[1].size, 5U);
  EXPECT_FALSE((*entries)[1].is_directory);
  EXPECT_TRUE((*entries)[2].is_directory);
}

TEST_P(StorageConformance, ManyNamesAreListedAndRemoved) {
  ASSERT_TRUE(IsOk(disk().MakeDirectory(Path("many"))));
  std::vector<std::string> names;
  for (int i = 100; i < 250; ++i) {
    names.push_back("file-" + std::to_string(i));
    ASSERT_TRUE(IsOk(Write("many/" + names.back(), std::string(static_cast<std::size_t>(i), 'x'))));
  }
  const auto entries = disk().List(Path("many"));
  ASSERT_TRUE(IsOk(entries));
  ASSERT_EQ(entries->size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ((*entries)[i].name, names[i]);
    EXPECT_EQ((*entries)[i].size, 100 + i);
  }
  ASSERT_TRUE(IsOk(disk().Remove(Path("many"))));
  EXPECT_FALSE(disk().List(Path("many")).ok());
}

TEST_P(FileSystemConformance, LinkGivesAFileASecondName) {
  HardLinks* const links = disk().extras().hard_links;
  ASSERT_NE(links, nullptr);
  ASSERT_TRUE(IsOk(Write("a", "content")));
  ASSERT_TRUE(IsOk(Write("taken", "content")));
  ASSERT_TRUE(IsOk(links->Link(Path("a"), Path("b"))));
  EXPECT_TRUE(*links->AreOneFile(Path("a"), Path("b")));
  EXPECT_FALSE(*links->AreOneFile(Path("a"), Path("taken")));
  EXPECT_TRUE(FailsWith(links->AreOneFile(Path("a"), Path("none")), StatusCode::kNotFound));
  EXPECT_TRUE(FailsWith(links->Link(Path("a"), Path("taken")), StatusCode::kAlreadyExists));
  EXPECT_TRUE(FailsWith(links->Link(Path("none"), Path("c")), StatusCode::kNotFound));
  ASSERT_TRUE(IsOk(disk().MakeDirectory(Path("dir"))));
  EXPECT_TRUE(FailsWith(links->Link(Path("dir"), Path("c")), StatusCode::kUnimplemented));
  ASSERT_TRUE(IsOk(disk().Remove(Path("a"))));
  const auto left = ReadWholeFile(disk(), Path("b"), 100);
  ASSERT_TRUE(IsOk(left));
  EXPECT_EQ(*left, "content");
}

TEST_P(FileSystemConformance, ASymbolicLinkToNothingIsListedAndLinkedItself) {
  SymbolicLinks* const links = disk().extras().symbolic_links;
  ASSERT_NE(links, nullptr);
  ASSERT_TRUE(IsOk(links->MakeLink("nowhere/at/all", Path("link"))));
  EXPECT_TRUE(FailsWith(links->MakeLink("x", Path("link")), StatusCode::kAlreadyExists));
  ASSERT_TRUE(IsOk(disk().extras().hard_links->Link(Path("link"), Path("second"))));
  const auto text = links->ReadLink(Path("second"));
  ASSERT_TRUE(IsOk(text));
  EXPECT_EQ(*text, "nowhere/at/all");
  const auto entries = disk().List(Path(""));
  ASSERT_TRUE(IsOk(entries));
  ASSERT_EQ(entries->size(), 2U);
  EXPECT_TRUE((*entries)[0].is_link);
  EXPECT_FALSE((*entries)[0].is_directory);
  EXPECT_EQ((*entries)[0].size, 0U);
  EXPECT_TRUE(FailsWith(disk().OpenForRead(Path("link")), StatusCode::kNotFound));
  ASSERT_TRUE(IsOk(Write("file", "")));
  EXPECT_TRUE(FailsWith(links->ReadLink(Path("file")), StatusCode::kInvalidArgument));
  EXPECT_TRUE(FailsWith(links->ReadLink(Path("none")), StatusCode::kNotFound));
}

TEST_P(FileSystemConformance, RemoveEmptyLeavesADirectoryThatHoldsSomething) {
  EmptyDirectories* const directories = disk().extras().empty_directories;
  ASSERT_NE(directories, nullptr);
  ASSERT_TRUE(IsOk(disk().MakeDirectory(Path("dir"))));
  ASSERT_TRUE(IsOk(Write("dir/file", "")));
  EXPECT_TRUE(FailsWith(directories->RemoveEmpty(Path("dir")), StatusCode::kAlreadyExists));
  ASSERT_TRUE(IsOk(disk().Remove(Path("dir/file"))));
  EXPECT_TRUE(IsOk(directories->RemoveEmpty(Path("dir"))));
  EXPECT_TRUE(FailsWith(disk().List(Path("dir")), StatusCode::kNotFound));
  EXPECT_TRUE(IsOk(directories->RemoveEmpty(Path("dir"))));
}

TEST_P(StorageConformance, ListRefusesWhatIsNoDirectory) {
  ASSERT_TRUE(IsOk(Write("file", "")));
  EXPECT_TRUE(FailsWith(disk().List(Path("none")), StatusCode::kNotFound));
  EXPECT_TRUE(FailsWith(disk().List(Path("file")), StatusCode::kInvalidArgument));
}

TEST_P(FileSystemConformance, MakeDirectoryNeedsAFreeNameAndAParent) {
  ASSERT_TRUE(IsOk(disk().MakeDirectory(Path("dir"))));
  EXPECT_TRUE(FailsWith(disk().MakeDirectory(Path("dir")), StatusCode::kAlreadyExists));
  EXPECT_TRUE(FailsWith(disk().MakeDirectory(Path("none/dir")), StatusCode::kNotFound));
}

TEST_P(FileSystemConformance, SyncDirectoryNeedsADirectory) {
  EXPECT_TRUE(IsOk(disk().SyncDirectory(Path(""))));
  EXPECT_TRUE(FailsWith(disk().SyncDirectory(Path("none")), StatusCode::kNotFound));
}

TEST_P(FileSystemConformance, RenameNoReplaceNeverTakesAName) {
  ASSERT_TRUE(IsOk(Write("a", "a")));
  ASSERT_TRUE(IsOk(Write("b", "b")));
  EXPECT_TRUE(FailsWith(disk().Rename(Path("a"), Path("b"), RenameMode::kNoReplace),
                        StatusCode::kAlreadyExists));
  EXPECT_TRUE(FailsWith(disk().Rename(Path("no"), Path("c"), RenameMode::kNoReplace),
                        StatusCode::kNotFound));
  EXPECT_TRUE(IsOk(disk().Rename(Path("a"), Path("c"), RenameMode::kNoReplace)));
  EXPECT_EQ(Read("c"), "a");
  EXPECT_EQ(Names(), (std::vector<std::string>{"b", "c"}));
}

TEST_P(FileSystemConformance, RenameReplaceTakesTheFilesPlace) {
  ASSERT_TRUE(IsOk(Write("a", "a")));
  ASSERT_TRUE(IsOk(Write("b", "b")));
  EXPECT_TRUE(IsOk(disk().Rename(Path("a"), Path("b"), RenameMode::kReplace)));
  EXPECT_EQ(Names(), std::vector<std::string>{"b"});
  EXPECT_EQ(Read("b"), "a");
}

TEST_P(FileSystemConformance, RenameReplaceTakesAnEmptyDirectoryAndNoOther) {
  ASSERT_TRUE(IsOk(disk().MakeDirectory(Path("a"))));
  ASSERT_TRUE(IsOk(disk().MakeDirectory(Path("b"))));
  ASSERT_TRUE(IsOk(Write("a/was-a", "")));
  ASSERT_TRUE(IsOk(disk().Rename(Path("a"), Path("b"), RenameMode::kReplace)));
  EXPECT_EQ(Names(), std::vector<std::string>{"b"});
  EXPECT_EQ(Names("b"), std::vector<std::string>{"was-a"});

  ASSERT_TRUE(IsOk(disk().MakeDirectory(Path("c"))));
  EXPECT_TRUE(FailsWith(disk().Rename(Path("c"), Path("b"), RenameMode::kReplace),
                        StatusCode::kAlreadyExists));
  EXPECT_EQ(Names("b"), std::vector<std::string>{"was-a"});
}

TEST_P(FileSystemConformance, ExchangeSwapsTwoDirectories) {
  ASSERT_TRUE(IsOk(disk().MakeDirectory(Path("a"))));
  ASSERT_TRUE(IsOk(disk().MakeDirectory(Path("b"))));
  ASSERT_TRUE(IsOk(Write("a/was-a", "")));
  ASSERT_TRUE(IsOk(Write("b/was-b", "")));
  const Status status = disk().Rename(Path("a"), Path("b"), RenameMode::kExchange);
  if (status.code() == StatusCode::kUnimplemented) {
    GTEST_SKIP() << status.message();
  }
  ASSERT_TRUE(IsOk(status));
  EXPECT_EQ(Names("a"), std::vector<std::string>{"was-b"});
  EXPECT_EQ(Names("b"), std::vector<std::string>{"was-a"});
}

TEST_P(FileSystemConformance, ExchangeNeedsBothNames) {
  ASSERT_TRUE(IsOk(disk().MakeDirectory(Path("a"))));
  const Status status = disk().Rename(Path("a"), Path("b"), RenameMode::kExchange);
  if (status.code() == StatusCode::kUnimplemented) {
    GTEST_SKIP() << status.message();
  }
  EXPECT_TRUE(FailsWith(status, StatusCode::kNotFound));
  EXPECT_EQ(Names(), std::vector<std::string>{"a"});
}

TEST_P(StorageConformance, RemoveTakesTreesFilesAndNothing) {
  ASSERT_TRUE(IsOk(disk().MakeDirectory(Path("dir"))));
  ASSERT_TRUE(IsOk(disk().MakeDirectory(Path("dir/sub"))));
  ASSERT_TRUE(IsOk(Write("dir/file", "")));
  ASSERT_TRUE(IsOk(Write("dir/sub/file", "")));
  ASSERT_TRUE(IsOk(Write("file", "")));
  ASSERT_TRUE(IsOk(Write("file-that-stays", "")));
  EXPECT_TRUE(IsOk(disk().Remove(Path("dir"))));
  EXPECT_TRUE(IsOk(disk().Remove(Path("file"))));
  EXPECT_TRUE(IsOk(disk().Remove(Path("none"))));
  EXPECT_TRUE(IsOk(disk().Remove(Path("none/file"))));
  EXPECT_EQ(Names(), std::vector<std::string>{"file-that-stays"});
}

TEST_P(FileSystemConformance, OpenFilesOutliveTheirNames) {
  ASSERT_TRUE(IsOk(Write("file", "still here")));
  const auto file = disk().OpenForRead(Path("file"));
  ASSERT_TRUE(IsOk(file));
  ASSERT_TRUE(IsOk(disk().Remove(Path("file"))));
  std::string content(10, ' ');
  EXPECT_TRUE(IsOk((*file)->ReadAt(0, std::as_writable_bytes(std::span(content)))));
  EXPECT_EQ(content, "still here");
}

TEST_P(FileSystemConformance, LockHasOneHolderAndLeavesNothing) {
  {
    const auto lock = disk().Lock(Path(".lock"));
    ASSERT_TRUE(IsOk(lock));
    EXPECT_TRUE(FailsWith(disk().Lock(Path(".lock")), StatusCode::kFailedPrecondition, {".lock"}));
    EXPECT_TRUE(IsOk(disk().Lock(Path(".other"))));
  }
  EXPECT_TRUE(Names().empty());
  EXPECT_TRUE(IsOk(disk().Lock(Path(".lock"))));
}

TEST_P(FileSystemConformance, LockTakesOverTheFileOfTheDead) {
  ASSERT_TRUE(IsOk(Write(".lock", "")));
  EXPECT_TRUE(IsOk(disk().Lock(Path(".lock"))));
  EXPECT_TRUE(Names().empty());
}

TEST_P(FileSystemConformance, LockNeedsItsDirectory) {
  EXPECT_TRUE(FailsWith(disk().Lock(Path("none/.lock")), StatusCode::kNotFound));
}

TEST_P(FileSystemConformance, LockOutlivesAnotherFileOfItsName) {
  auto lock = disk().Lock(Path(".lock"));
  ASSERT_TRUE(IsOk(lock));
  ASSERT_TRUE(IsOk(disk().Remove(Path(".lock"))));
  ASSERT_TRUE(IsOk(Write(".lock", "another's")));
  lock->reset();
  EXPECT_EQ(Read(".lock"), "another's");
}

TEST_P(FileSystemConformance, LocksFromManyThreadsNeverOverlap) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 200;
  std::atomic<int> inside{0};
  std::atomic<int> overlaps{0};
  std::atomic<int> taken{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        for (int round = 0; round < kRounds; ++round) {
          const auto lock = disk().Lock(Path(".lock"));
          if (lock.ok()) {
            overlaps += ++inside > 1 ? 1 : 0;
            ++taken;
            --inside;
          }
        }
      });
    }
  }
  EXPECT_EQ(overlaps, 0);
  EXPECT_GT(taken, 0);
  EXPECT_TRUE(Names().empty());
}

INSTANTIATE_TEST_SUITE_P(FileSystems, StorageConformance, kFileSystems, NameOf);
INSTANTIATE_TEST_SUITE_P(FileSystems, FileSystemConformance, kFileSystems, NameOf);
INSTANTIATE_TEST_SUITE_P(ObjectStores, StorageConformance, kObjectStores, NameOf);

}  // namespace
}  // namespace varve::storage_conformance_test
