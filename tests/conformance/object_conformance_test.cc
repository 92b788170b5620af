// The claims that a storage must meet that publishes by conditional writes.

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "conformance/storages.h"

namespace varve::storage_conformance_test {
namespace {

/// Conditional writes.
class ObjectConformance : public StorageConformance {
 protected:
  ConditionalWrites& writes() { return *disk().extras().conditional_writes; }
};

TEST_P(ObjectConformance, SaysWhatItLacks) {
  EXPECT_TRUE(writes().Serves(Path("file")));
  EXPECT_TRUE(FailsWith(disk().Rename(Path("a"), Path("b"), RenameMode::kReplace),
                        StatusCode::kUnimplemented));
  EXPECT_TRUE(FailsWith(disk().Lock(Path(".lock")), StatusCode::kUnimplemented));
  EXPECT_TRUE(
      FailsWith(disk().OpenForWrite(Path("file"), {.shared = true}), StatusCode::kUnimplemented));
}

TEST_P(ObjectConformance, AFileAppearsWhole) {
  auto file = disk().OpenForWrite(Path("file"), {});
  ASSERT_TRUE(IsOk(file));
  ASSERT_TRUE(IsOk((*file)->WriteAt(0, std::as_bytes(std::span("text", 4)))));
  EXPECT_TRUE(FailsWith(disk().OpenForRead(Path("file")), StatusCode::kNotFound));
  ASSERT_TRUE(IsOk((*file)->Sync(4)));
  EXPECT_EQ(Read("file"), "text");
}

TEST_P(ObjectConformance, AConditionalWriteNeverTakesAName) {
  EXPECT_TRUE(IsOk(writes().WriteIfAbsent(Path("file"), "first")));
  EXPECT_TRUE(
      FailsWith(writes().WriteIfAbsent(Path("file"), "second"), StatusCode::kAlreadyExists));
  EXPECT_EQ(Read("file"), "first");
  EXPECT_TRUE(IsOk(writes().WriteIfAbsent(Path("file"), "first")));  // As a retry would.
}

TEST_P(ObjectConformance, AReplacementTakesThePlaceOfWhatIsThere) {
  const std::string large(std::size_t{3} << 20, 'x');
  EXPECT_TRUE(IsOk(writes().Replace(Path("file"), "first")));
  EXPECT_EQ(Read("file"), "first");
  EXPECT_TRUE(IsOk(writes().Replace(Path("file"), large)));
  const auto there = ReadWholeFile(disk(), Path("file"), large.size());
  ASSERT_TRUE(IsOk(there));
  EXPECT_TRUE(*there == large);
  EXPECT_TRUE(
      FailsWith(writes().WriteIfAbsent(Path("file"), large + "y"), StatusCode::kAlreadyExists));
}

TEST_P(ObjectConformance, AReaderOfWhatIsReplacedFindsOneOrTheOther) {
  const std::string first(std::size_t{1} << 19, 'a');
  const std::string second(std::size_t{1} << 19, 'b');
  ASSERT_TRUE(IsOk(writes().Replace(Path("file"), first)));
  std::atomic<bool> done{false};
  const std::jthread writer([&] {
    for (int i = 0; i < 10; ++i) {
      EXPECT_TRUE(IsOk(writes().Replace(Path("file"), i % 2 == 0 ? second : first)));
    }
    done = true;
  });
  while (!done) {
    const auto there = ReadWholeFile(disk(), Path("file"), first.size());
    EXPECT_TRUE(!there.ok() || *there == first || *there == second);
    EXPECT_NE(there.status().code(), StatusCode::kNotFound);
  }
}

TEST_P(ObjectConformance, OfManyConditionalWritesOneSucceeds) {
  for (int round = 0; round < 5; ++round) {
    std::atomic<int> succeeded{0};
    const std::string name = Path("file" + std::to_string(round));
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < 8; ++i) {
        threads.emplace_back([&, i] {
          succeeded += writes().WriteIfAbsent(name, "of " + std::to_string(i)).ok() ? 1 : 0;
        });
      }
    }
    EXPECT_EQ(succeeded, 1);
  }
}

TEST_P(ObjectConformance, WhatIsNotFinishedIsListedAndRemoved) {
  auto file = disk().OpenForWrite(Path("dir/file"), {});
  ASSERT_TRUE(IsOk(file));
  // More than a part of an upload.
  const std::vector<std::byte> part(std::size_t{17} << 20);
  ASSERT_TRUE(IsOk((*file)->WriteAt(std::uint64_t{16} << 20, part)));
  const auto unfinished = writes().ListUnfinished(Path("dir"));
  ASSERT_TRUE(IsOk(unfinished));
  ASSERT_EQ(unfinished->size(), 1U);
  EXPECT_EQ((*unfinished)[0].name, Path("dir/file"));
  EXPECT_TRUE(IsOk(writes().RemoveUnfinished((*unfinished)[0])));
  EXPECT_TRUE(IsOk(writes().RemoveUnfinished((*unfinished)[0])));
  EXPECT_TRUE(writes().ListUnfinished(Path("dir"))->empty());
}

INSTANTIATE_TEST_SUITE_P(ObjectStores, ObjectConformance, kObjectStores, NameOf);

}  // namespace
}  // namespace varve::storage_conformance_test
