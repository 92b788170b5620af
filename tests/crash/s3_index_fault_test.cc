// Saves in DCP's format by two ranks, as S3 servers see them. The index has one name, `.metadata`;
// see publish/index_commit.cc.

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "crash/s3_faults.h"
#include "publish/commit.h"
#include "varve/catalogue.h"

namespace varve::test::s3_index_fault_test {
namespace {

constexpr const char* kIndex = "bucket/run/step-1/.metadata";

class S3FaultsOfDcp : public S3Faults {
 protected:
  S3FaultsOfDcp() : S3Faults(Format::kDcp) {}

  static std::unique_ptr<Commit> BeginSlow(Storage& storage, Overwrite overwrite) {
    auto begun =
        Commit::Begin(storage, kS3Path,
                      {.id = SaveId{{9}}, .overwrite = overwrite, .index = {.name = ".metadata"}});
    EXPECT_TRUE(IsOk(begun));
    return begun.ok() ? std::move(*begun) : nullptr;
  }
};

TEST_F(S3FaultsOfDcp, GarbageIsADayOldAndIsNotLookedForUnderAnIndexThatCannotBeRead) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveBoth(new_, *storage, false)));
  const std::string dead = "bucket/run/step-1/varve-data-" + std::string(32, 'a') + "/data";
  server.Put(dead, "of a save under way");
  server.SetTime("2026-01-01T12:00:00.000Z", "Thu, 01 Jan 2026 13:00:00 GMT");
  const auto young = CollectGarbage("s3://bucket/run", DryRun::kNo, *storage);
  ASSERT_TRUE(IsOk(young));
  EXPECT_TRUE(young->removed.empty());
  EXPECT_EQ(young->kept.size(), 1U);
  server.SetTime("2026-01-01T12:00:00.000Z", "Sat, 03 Jan 2026 13:00:00 GMT");
  const std::string index = server.objects().at(kIndex);
  server.Put(kIndex, index.substr(0, index.size() / 2));
  const auto objects = server.objects();
  ASSERT_TRUE(IsOk(CollectGarbage("s3://bucket/run", DryRun::kNo, *storage)));
  EXPECT_EQ(server.objects(), objects);
  server.Put(kIndex, index);
  ASSERT_TRUE(IsOk(CollectGarbage("s3://bucket/run", DryRun::kNo, *storage)));
  EXPECT_FALSE(server.objects().contains(dead));
  EXPECT_EQ(Seen(*storage), 2);
}

TEST_F(S3FaultsOfDcp, OfTwoOverwritesTheNameIsOneWhole) {
  S3Server server;
  JobState before(3, kS3Ranks, 200);
  before.LeaveStructureOut();
  for (std::uint64_t round = 0; round < 20; round += kEvery) {
    const auto a = Open(server);
    const auto b = Open(server);
    ASSERT_TRUE(IsOk(SaveBoth(before, *a, true)));
    Status first;
    Status second;
    {
      const std::jthread one([&] { first = SaveBoth(old_, *a, true); });
      const std::jthread other([&] { second = SaveBoth(new_, *b, true); });
    }
    EXPECT_TRUE(first.ok() || second.ok()) << first.ToString() << " / " << second.ToString();
    const int seen = Seen(*a);
    EXPECT_NE(seen, 0);
    EXPECT_TRUE(first.ok() || seen == 2);
    EXPECT_TRUE(second.ok() || seen == 1);
    ASSERT_TRUE(IsOk(CollectGarbage("s3://bucket/run", DryRun::kNo, *a)));
    EXPECT_EQ(Seen(*a), seen);
    ExpectNothingBut(seen, server);
  }
}

TEST_F(S3FaultsOfDcp, ASaveThatAnotherHasOvertakenFails) {
  S3Server server;
  const auto storage = Open(server);
  const auto first = BeginSlow(*storage, Overwrite::kNever);
  ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
  auto second = BeginSlow(*storage, Overwrite::kAlways);
  ASSERT_TRUE(IsOk(SaveBoth(new_, *storage, true)));
  const auto objects = server.objects();
  ASSERT_TRUE(IsOk(WriteWholeFile(*storage, JoinPath(second->staging(), "data"), "x")));
  EXPECT_TRUE(FailsWith(first->Publish({}, {{".metadata", "index"}}), StatusCode::kAlreadyExists,
                        {"another save of this name was published meanwhile"}));
  EXPECT_TRUE(FailsWith(second->Publish({}, {{".metadata", "index"}}),
                        StatusCode::kFailedPrecondition,
                        {"another save of this name was published meanwhile"}));
  second.reset();
  EXPECT_EQ(server.objects(), objects);
}

TEST_F(S3FaultsOfDcp, AnOverwriteReplacesWhatTheIndexNamesAndNothingElse) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
  const std::size_t objects = server.objects().size();
  server.Put("bucket/run/step-1/notes.txt", "a user's");
  server.Put("bucket/run/step-1/__9_0.distcp", "of another writer that may live");
  ASSERT_TRUE(IsOk(SaveBoth(new_, *storage, true)));
  EXPECT_EQ(server.objects().size(), objects + 2);
  const auto report = RemoveCheckpoint(kS3Path, DryRun::kYes, *storage);
  ASSERT_TRUE(IsOk(report));
  EXPECT_EQ(report->others, std::vector<std::string>{"notes.txt"});
  EXPECT_EQ(Verify(kS3Path, *storage)->damages.size(), 0U);
}

TEST_F(S3FaultsOfDcp, AnIndexOfMoreThanAMebibyteIsPublishedAndReplaced) {
  S3Server server;
  const auto storage = Open(server);
  State state;
  std::vector<float> memory(4, 1.0F);
  for (int i = 0; i < 1'000; ++i) {
    state.tensors.push_back({std::string(1'000, 'n') + std::to_string(i),
                             DType::kFloat32,
                             {4},
                             WholeBox({4}),
                             HostMemory{memory.data()}});
  }
  for (const bool overwrite : {false, true}) {
    ASSERT_TRUE(IsOk(Save(state, kS3Path, SmallSave(overwrite, Format::kDcp), *storage)));
  }
  EXPECT_GT(server.objects().at(kIndex).size(), std::size_t{1} << 20);
  EXPECT_TRUE(Verify(kS3Path, *storage)->clean());
}

}  // namespace
}  // namespace varve::test::s3_index_fault_test
