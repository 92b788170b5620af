#include "storages/faulty.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "storages/memory.h"
#include "support/status_matchers.h"

namespace varve::faulty_test {
namespace {

using test::FailsWith;
using test::IsOk;

Status Write(Storage& storage, const std::string& name, const std::string& content) {
  return WriteWholeFile(storage, name, content);
}

TEST(FaultyStorage, CountsChangesAndNotReads) {
  MemoryStorage memory;
  FaultyStorage faulty(memory);
  ASSERT_TRUE(IsOk(Write(faulty, "file", "x")));  // Open, write, sync.
  EXPECT_EQ(faulty.changes(), 3U);
  EXPECT_TRUE(IsOk(ReadWholeFile(faulty, "file", 10)));
  EXPECT_TRUE(IsOk(faulty.List(".")));
  EXPECT_EQ(faulty.changes(), 3U);
  EXPECT_EQ(faulty.count(Operation::kRead), 1U);
}

TEST(FaultyStorage, StopsForGoodAfterSoManyChanges) {
  MemoryStorage memory;
  FaultyStorage faulty(memory);
  faulty.StopAt(3);
  ASSERT_TRUE(IsOk(Write(faulty, "a", "a")));
  EXPECT_TRUE(IsOk(faulty.List(".")));
  EXPECT_FALSE(faulty.stopped());
  EXPECT_TRUE(FailsWith(faulty.MakeDirectory("b"), StatusCode::kCancelled, {"crashed"}));
  EXPECT_TRUE(faulty.stopped());
  EXPECT_TRUE(FailsWith(faulty.List("."), StatusCode::kCancelled));
  EXPECT_TRUE(FailsWith(ReadWholeFile(faulty, "a", 10), StatusCode::kCancelled));
  EXPECT_TRUE(FailsWith(memory.List("b"), StatusCode::kNotFound));
}

TEST(FaultyStorage, DoesTheLastWriteByHalf) {
  MemoryStorage memory;
  FaultyStorage faulty(memory);
  faulty.StopAt(1);
  EXPECT_TRUE(FailsWith(Write(faulty, "a", std::string(8192, 'x')), StatusCode::kCancelled));
  EXPECT_EQ(ReadWholeFile(memory, "a", 10000).value(), std::string(4096, 'x'));
}

TEST(FaultyStorage, RemovesADirectoryEntryByEntry) {
  MemoryStorage memory;
  ASSERT_TRUE(IsOk(memory.MakeDirectory("dir")));
  ASSERT_TRUE(IsOk(Write(memory, "dir/a", "")));
  ASSERT_TRUE(IsOk(Write(memory, "dir/b", "")));
  FaultyStorage faulty(memory);
  faulty.StopAt(1);
  EXPECT_TRUE(FailsWith(faulty.Remove("dir"), StatusCode::kCancelled));
  ASSERT_EQ(memory.List("dir").value().size(), 1U);
  FaultyStorage healthy(memory);
  EXPECT_TRUE(IsOk(healthy.Remove("dir")));
  EXPECT_EQ(healthy.changes(), 2U);
}

TEST(FaultyStorage, TheDeadLetGoOfNoLock) {
  MemoryStorage memory;
  FaultyStorage faulty(memory);
  faulty.StopAt(1);
  faulty.Lock("lock").value().reset();
  EXPECT_TRUE(FailsWith(memory.Lock("lock"), StatusCode::kFailedPrecondition));
  EXPECT_TRUE(IsOk(memory.AfterKill()->Lock("lock")));
}

TEST(FaultyStorage, FailsOnce) {
  MemoryStorage memory;
  FaultyStorage faulty(memory);
  faulty.FailAt({.operation = Operation::kSync, .number = 1, .status = Unavailable("EIO")});
  EXPECT_TRUE(IsOk(Write(faulty, "a", "")));
  EXPECT_TRUE(FailsWith(Write(faulty, "b", ""), StatusCode::kUnavailable, {"sync b", "EIO"}));
  EXPECT_TRUE(IsOk(Write(faulty, "c", "")));
}

TEST(FaultyStorage, FailsForEver) {
  MemoryStorage memory;
  FaultyStorage faulty(memory);
  faulty.FailAt({.operation = Operation::kOpenForWrite,
                 .number = 1,
                 .forever = true,
                 .status = {StatusCode::kOutOfSpace, "full"}});
  EXPECT_TRUE(IsOk(Write(faulty, "a", "")));
  EXPECT_TRUE(FailsWith(Write(faulty, "b", ""), StatusCode::kOutOfSpace));
  EXPECT_TRUE(FailsWith(Write(faulty, "c", ""), StatusCode::kOutOfSpace));
  EXPECT_TRUE(IsOk(faulty.MakeDirectory("d")));
}

TEST(FaultyStorage, AnObserverMayUseTheStorageBelow) {
  MemoryStorage memory;
  FaultyStorage faulty(memory);
  std::vector<std::string> seen;
  faulty.SetObserver([&](Operation operation, const std::string& name) {
    seen.push_back(std::string(OperationName(operation)) + " " + name + ": " +
                   std::to_string(memory.List(".").value().size()));
  });
  ASSERT_TRUE(IsOk(Write(faulty, "a", "")));
  EXPECT_EQ(seen, (std::vector<std::string>{"open for writing a: 0", "write a: 1", "sync a: 1"}));
}

}  // namespace
}  // namespace varve::faulty_test
