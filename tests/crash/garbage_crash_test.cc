// gc and parts of files whose writers live.

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "catalogue/names.h"
#include "crash/matrix.h"
#include "crash/saves.h"
#include "varve/catalogue.h"

namespace varve::test::garbage_crash_test {
namespace {

constexpr const char* kPath = "runs/step-1";

Status Collect(Storage& storage) { return CollectGarbage("runs", DryRun::kNo, storage).status(); }

TEST(GarbageOfFiles, APartStaysWhileTheWriterOfTheFileLives) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(storage.MakeDirectory("runs")));
  const std::string part = PartPath("runs", "model.safetensors");
  ASSERT_TRUE(IsOk(WriteWholeFile(storage, part, "half of it")));
  auto writer = storage.Lock(LockPath("runs/model.safetensors"));
  ASSERT_TRUE(IsOk(writer));
  const auto beside = CollectGarbage("runs", DryRun::kNo, storage);
  ASSERT_TRUE(IsOk(beside));
  EXPECT_NE(std::find(beside->kept.begin(), beside->kept.end(), part), beside->kept.end());
  EXPECT_TRUE(IsOk(storage.OpenForRead(part)));
  const auto killed = storage.AfterKill();  // The lock's file stays, and nothing holds it.
  ASSERT_TRUE(IsOk(Collect(*killed)));
  EXPECT_TRUE(FailsWith(killed->OpenForRead(part), StatusCode::kNotFound));
}

TEST(GarbageOfFiles, ARanksPartStaysWhileTheRankLives) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveAlone(JobState(1, 1), kPath, storage, false)));
  const std::string part = PartPath(kPath, "data-00000001-of-00000002-0123456789abcdef.varve");
  ASSERT_EQ(PartRank(BaseName(part)), 1U);
  ASSERT_TRUE(IsOk(WriteWholeFile(storage, part, "half of it")));
  auto writer = storage.Lock(RankLockPath(kPath, 1));
  ASSERT_TRUE(IsOk(writer));
  const auto beside = CollectGarbage("runs", DryRun::kNo, storage);
  ASSERT_TRUE(IsOk(beside));
  EXPECT_NE(std::find(beside->kept.begin(), beside->kept.end(), part), beside->kept.end());
  EXPECT_TRUE(IsOk(storage.OpenForRead(part)));
  EXPECT_TRUE(IsOk(storage.OpenForRead(RankLockPath(kPath, 1))))
      << "another process of that rank would lock another file";
  const auto killed = storage.AfterKill();  // The lock's file stays, and nothing holds it.
  ASSERT_TRUE(IsOk(Collect(*killed)));
  EXPECT_TRUE(FailsWith(killed->OpenForRead(part), StatusCode::kNotFound));
}

}  // namespace
}  // namespace varve::test::garbage_crash_test
