// Saves in DCP's format by two ranks, with a fault or a death at each of the requests that they
// make of an S3 server. The index has one name, `.metadata`; see publish/index_commit.cc.

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "catalogue/formats.h"
#include "catalogue/names.h"
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

TEST_F(S3FaultsOfDcp, ASaveOutlastsWhatPasses) {
  SaveWithEachFault({S3Fault::kUnavailable, S3Fault::kResetBefore, S3Fault::kResetAfter,
                     S3Fault::kInternalLate, S3Fault::kTruncated},
                    /*overwrite=*/false, /*must_succeed=*/true);
}

TEST_F(S3FaultsOfDcp, AnOverwriteOutlastsWhatPasses) {
  SaveWithEachFault({S3Fault::kUnavailable, S3Fault::kResetBefore, S3Fault::kResetAfter,
                     S3Fault::kInternalLate, S3Fault::kTruncated},
                    /*overwrite=*/true, /*must_succeed=*/true);
}

TEST_F(S3FaultsOfDcp, ARefusedRequestFailsTheSaveAndLeavesWhatWasThere) {
  SaveWithEachFault({S3Fault::kRefused}, /*overwrite=*/false, /*must_succeed=*/false);
  SaveWithEachFault({S3Fault::kRefused}, /*overwrite=*/true, /*must_succeed=*/false);
}

TEST_F(S3FaultsOfDcp, AfterADeathAtAnyRequestOneCheckpointOpensAndGarbageGoes) {
  DieAtEachRequest(".metadata");
}

TEST_F(S3FaultsOfDcp, ADeathOfTheCollectorHarmsNoCheckpoint) {
  int requests = 0;
  for (int at = 0; at == 0 || at < requests; ++at) {
    S3Server server;
    const auto storage = Open(server);
    ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
    const auto whole = server.objects();
    const std::string dead = "bucket/run/step-1/varve-data-" + std::string(32, 'a') + "/";
    server.Put(dead + "__0_0.distcp", "left by a dead save");
    server.Put("bucket/run/step-1/notes.txt", "a user's");
    server.SetScript([&](const S3Request&, int index) {
      return index < at ? S3Fault::kNone : S3Fault::kRefused;
    });
    const auto report = CollectGarbage("s3://bucket/run", DryRun::kNo, *storage);
    requests = report.ok() ? at : at + 2;
    server.SetScript({});
    EXPECT_EQ(Seen(*storage), 1) << "request " << at;
    ASSERT_TRUE(IsOk(CollectGarbage("s3://bucket/run", DryRun::kNo, *storage)));
    auto left = server.objects();
    EXPECT_EQ(left.erase("bucket/run/step-1/notes.txt"), 1U);
    EXPECT_EQ(left, whole);
  }
  EXPECT_GE(requests, 5);
}

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

TEST_F(S3FaultsOfDcp, OfTwoFirstSavesOneWins) {
  S3Server server;
  for (int round = 0; round < 20; ++round) {
    const auto a = Open(server);
    const auto b = Open(server);
    Status first;
    Status second;
    {
      const std::jthread one([&] { first = SaveBoth(old_, *a, false); });
      const std::jthread other([&] { second = SaveBoth(new_, *b, false); });
    }
    EXPECT_TRUE(first.ok() != second.ok()) << first.ToString() << " / " << second.ToString();
    EXPECT_EQ(Seen(*a), first.ok() ? 1 : 2);
    ExpectNothingBut(".metadata", server, *a);
    EXPECT_TRUE(IsOk(RemoveCheckpoint(kS3Path, DryRun::kNo, *a).status()));
    EXPECT_TRUE(server.objects().empty());
  }
}

TEST_F(S3FaultsOfDcp, OfTwoOverwritesTheNameIsOneWhole) {
  S3Server server;
  JobState before(3, kS3Ranks, 200);
  before.LeaveStructureOut();
  for (int round = 0; round < 20; ++round) {
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
    ExpectNothingBut(".metadata", server, *a);
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

TEST_F(S3FaultsOfDcp, AnIndexWhoseFateIsNotKnownKeepsTheDataOfBoth) {
  // Each answer to its PUT is lost; the first try is carried out, or only much later.
  for (const bool applied : {true, false}) {
    S3Server server;
    auto settings = QuickSettings(server);
    settings.retry.patience = std::chrono::milliseconds(30);
    s3::S3Storage storage(settings, [] { return s3::Credentials{"key", "secret", ""}; });
    ASSERT_TRUE(IsOk(SaveBoth(old_, storage, false)));
    std::string index;
    server.SetScript([&](const S3Request& request, int) {
      if (request.method == "PUT" && request.path.ends_with(".metadata") && index.empty()) {
        index = request.body;
        return applied ? S3Fault::kResetAfter : S3Fault::kUnavailable;
      }
      return index.empty() ? S3Fault::kNone : S3Fault::kUnavailable;
    });
    EXPECT_TRUE(
        FailsWith(SaveBoth(new_, storage, true), StatusCode::kUnavailable, {"its data were kept"}));
    server.SetScript({});
    EXPECT_EQ(Seen(storage), applied ? 2 : 1);
    server.Put(kIndex, index);
    EXPECT_EQ(Seen(storage), 2);
  }
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

TEST_F(S3FaultsOfDcp, AnotherFormatIsNotReplacedAndTheErrorSaysWhatToDo) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
  const std::vector<Storage*> both(kS3Ranks, storage.get());
  const auto of_dcp = server.objects();
  EXPECT_TRUE(FailsWith(SaveTogether(new_, kS3Path, both, true)[0], StatusCode::kFailedPrecondition,
                        {"varve rm"}));
  EXPECT_EQ(server.objects(), of_dcp);
  ASSERT_TRUE(IsOk(RemoveCheckpoint(kS3Path, DryRun::kNo, *storage)));
  ASSERT_TRUE(IsOk(SaveTogether(new_, kS3Path, both, false)[0]));
  const auto native = server.objects();
  EXPECT_TRUE(
      FailsWith(SaveBoth(old_, *storage, true), StatusCode::kFailedPrecondition, {"varve rm"}));
  EXPECT_EQ(server.objects(), native);
}

TEST_F(S3FaultsOfDcp, ARemovalBesideASaveLeavesWhatTheSaveWrites) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
  const std::string live = "bucket/run/step-1/varve-data-" + std::string(32, 'c') + "/data";
  ASSERT_TRUE(IsOk(WriteWholeFile(*storage, "s3://" + live, "of a save under way")));
  server.SetTime("2026-01-01T12:00:00.000Z", "Thu, 01 Jan 2026 13:00:00 GMT");
  ASSERT_TRUE(IsOk(RemoveCheckpoint(kS3Path, DryRun::kNo, *storage).status()));
  EXPECT_EQ(server.objects().size(), 1U);
  EXPECT_TRUE(server.objects().contains(live));
}

TEST_F(S3FaultsOfDcp, AReaderOfAReplacedCheckpointIsToldSo) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
  const auto reader = CheckpointReader::Open(kS3Path, *storage);
  ASSERT_TRUE(IsOk(reader));
  ASSERT_TRUE(IsOk(SaveBoth(new_, *storage, true)));
  EXPECT_TRUE(FailsWith(ReadContent(**reader).status(), StatusCode::kFailedPrecondition,
                        {"overwritten by another save"}));
}

TEST_F(S3FaultsOfDcp, AnIndexOfMoreThanAMebibyteIsPublishedAndReplaced) {
  S3Server server;
  const auto storage = Open(server);
  State state;
  std::vector<float> memory(4, 1.0F);
  for (int i = 0; i < 5'000; ++i) {
    state.tensors.push_back({std::string(200, 'n') + std::to_string(i),
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
