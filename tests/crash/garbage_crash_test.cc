// gc beside saves that live, without an effect, and on parts of files.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "catalogue/names.h"
#include "crash/matrix.h"
#include "crash/saves.h"
#include "varve/catalogue.h"

namespace varve::test::garbage_crash_test {
namespace {

constexpr const char* kPath = "runs/step-1";

Status Collect(Storage& storage) { return CollectGarbage("runs", DryRun::kNo, storage).status(); }

/// An overwrite that dies anywhere, then a gc.
class GarbageCrash : public testing::TestWithParam<bool> {
 protected:
  GarbageCrash() {
    MemoryStorage memory({.exchange = GetParam()});
    EXPECT_TRUE(IsOk(SaveAlone(old_, kPath, memory, false)));
    base_ = memory.AfterPowerCut(PowerCut::kKeepSynced);
  }

  JobState old_{1, 1};
  JobState new_{2, 1};
  std::unique_ptr<MemoryStorage> base_;
};

TEST_P(GarbageCrash, ADryRunChangesNothing) {
  const auto save = [this](Storage& s) { return SaveAlone(new_, kPath, s, true); };
  ForEachCrash(*base_, save, [&](MemoryStorage& left, const Status& /*outcome*/) {
    const auto survivor = left.AfterKill();
    std::vector<std::string> before;
    std::vector<std::string> after;
    ListTree(*survivor, ".", &before);
    const auto would = CollectGarbage("runs", DryRun::kYes, *survivor);
    ASSERT_TRUE(IsOk(would));
    ListTree(*survivor, ".", &after);
    // A probe of a dead save's lock removes the lock's file, which no save needs.
    std::erase_if(before, [](const std::string& name) { return name.ends_with(".varve-lock"); });
    EXPECT_EQ(before, after);
    const auto does = CollectGarbage("runs", DryRun::kNo, *survivor);
    ASSERT_TRUE(IsOk(does));
    EXPECT_EQ(would->recovered, does->recovered);
  });
}

TEST_P(GarbageCrash, ALiveSaveLosesNothing) {
  // A gc runs at every operation of the save.
  const auto memory = base_->AfterKill();
  FaultyStorage watched(*memory);
  std::uint64_t collections = 0;
  watched.SetObserver([&](Operation, const std::string&) {
    ++collections;
    const auto report = CollectGarbage("runs", DryRun::kNo, *memory);
    EXPECT_TRUE(IsOk(report));
  });
  EXPECT_TRUE(IsOk(SaveAlone(new_, kPath, watched, true)));
  EXPECT_GE(collections, 20U);
  EXPECT_TRUE(HoldsOneOf(kPath, *memory, {&new_.content()}));
  EXPECT_TRUE(HoldsNothingBut({kPath}, *memory));
}

INSTANTIATE_TEST_SUITE_P(FileSystems, GarbageCrash, testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "WithExchange" : "WithoutExchange");
});

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
