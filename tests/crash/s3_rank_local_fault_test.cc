// Saves by ranks that are not connected to each other, with a fault at each of the requests that
// they make of an S3 server.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "crash/s3_faults.h"
#include "publish/remove.h"
#include "storage/s3/s3_storage.h"
#include "support/s3_server.h"
#include "support/status_matchers.h"
#include "varve/catalogue.h"

namespace varve::test::s3_rank_local_fault_test {
namespace {

constexpr const char* kPath = kS3Path;

class S3Apart : public S3Faults {
 protected:
  static Status SaveRanks(const JobState& job, std::uint8_t number, const std::vector<int>& ranks,
                          Storage& storage, bool overwrite) {
    return SaveApart(job, number, ranks, kPath, storage, overwrite);
  }

  /// Returns which state readers see: 0 for none, and for one that is not complete.
  int SeenWhole(Storage& storage) {
    const auto content = ReadContent(kPath, storage);
    if (!content.ok()) {
      EXPECT_TRUE(content.status().code() == StatusCode::kNotFound ||
                  content.status().code() == StatusCode::kFailedPrecondition)
          << content.status().ToString();
      return 0;
    }
    EXPECT_TRUE(*content == old_.content() || *content == new_.content());
    return *content == old_.content() ? 1 : 2;
  }

  void SaveWithEach(bool overwrite) {
    const auto both = std::vector<int>{0, 1};
    WithEachFault(
        And(kPassing, {S3Fault::kRefused}),
        [&](S3Server&, Storage& storage) {
          EXPECT_TRUE(!overwrite || IsOk(SaveRanks(old_, 1, both, storage, false)));
        },
        [&](Storage& storage) { return SaveRanks(new_, 2, both, storage, overwrite); },
        [&](Run& run) { JudgeAfter(overwrite, run); });
  }

  void JudgeAfter(bool overwrite, Run& run) {
    const int seen = SeenWhole(*run.storage);
    EXPECT_TRUE(run.outcome.ok() || run.fault == S3Fault::kRefused) << run.what;
    // A rank whose removal of the old save is refused fails, and the new one is whole by then.
    EXPECT_TRUE(seen == 2 || (!run.outcome.ok() && seen == (overwrite ? 1 : 0)))
        << run.what << seen;
    EXPECT_TRUE(IsOk(SaveRanks(new_, 3, {1, 0}, *run.storage, true))) << run.what;
    EXPECT_EQ(SeenWhole(*run.storage), 2) << run.what;
    EXPECT_EQ(run.server.objects().size(), 2U) << run.what;
    // An upload whose beginning got no answer is left, and old enough by the server's time.
    EXPECT_TRUE(IsOk(CollectGarbage("s3://bucket/run", DryRun::kNo, *run.storage).status()))
        << run.what;
    EXPECT_EQ(run.server.open_uploads(), 0U) << run.what;
    EXPECT_EQ(SeenWhole(*run.storage), 2) << run.what;
  }
};

TEST_F(S3Apart, AFirstSaveIsWholeOrIncompleteWhicheverRequestFails) { SaveWithEach(false); }

TEST_F(S3Apart, AnOverwriteLeavesTheOldOrTheNew) { SaveWithEach(true); }

TEST_F(S3Apart, ASaveIsIncompleteUntilTheLastRankAndItsFilesHaveTheirOwnNames) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveRanks(new_, 2, {1}, *storage, false)));
  EXPECT_TRUE(FailsWith(CheckpointReader::Open(kPath, *storage).status(),
                        StatusCode::kFailedPrecondition, {"incomplete", "rank 0"}));
  ASSERT_TRUE(IsOk(SaveRanks(new_, 2, {0}, *storage, false)));
  EXPECT_EQ(SeenWhole(*storage), 2);
  for (const auto& [name, content] : server.objects()) {
    EXPECT_TRUE(name.starts_with("bucket/run/step-1/data-0000")) << name;
  }
}

TEST_F(S3Apart, ARankThatSavesTwiceUnderOneIdIsRefusedAndItsFileStays) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveRanks(old_, 1, {0}, *storage, false)));
  const auto objects = server.objects();
  EXPECT_TRUE(FailsWith(SaveRanks(new_, 1, {0}, *storage, true), StatusCode::kAlreadyExists,
                        {"data-00000-of-00002"}));
  EXPECT_EQ(server.objects(), objects);
}

// Two saves that overwrite at once: one that is complete must not remove what makes a newer one
// incomplete while that removes the first.
TEST_F(S3Apart, FilesOfASaveThatMayTurnOutToBeNewerStay) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveRanks(new_, 2, {1}, *storage, true)));
  ASSERT_TRUE(IsOk(SaveRanks(old_, 1, {0, 1}, *storage, true)));
  EXPECT_EQ(server.objects().size(), 3U);
  EXPECT_EQ(SeenWhole(*storage), 1);
  ASSERT_TRUE(IsOk(SaveRanks(new_, 2, {0}, *storage, true)));
  EXPECT_EQ(SeenWhole(*storage), 2);
  EXPECT_EQ(server.objects().size(), 2U);
}

TEST_F(S3Apart, WhichSaveIsOlderIsToldByRank0Alone) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveRanks(old_, 1, {0}, *storage, true)));
  ASSERT_TRUE(IsOk(SaveRanks(new_, 2, {0, 1}, *storage, true)));
  EXPECT_EQ(server.objects().size(), 2U);
  ASSERT_TRUE(IsOk(SaveRanks(old_, 1, {1}, *storage, true)));  // The last file of all.
  EXPECT_EQ(SeenWhole(*storage), 2);
}

TEST_F(S3Apart, ACommittedCheckpointIsNotReplaced) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
  ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, true)));  // Its record is varve-2.json now.
  const auto objects = server.objects();
  EXPECT_TRUE(FailsWith(SaveRanks(new_, 2, {0}, *storage, true), StatusCode::kAlreadyExists,
                        {"committed"}));
  EXPECT_EQ(server.objects(), objects);
  EXPECT_EQ(Seen(*storage), 1);
}

TEST_F(S3Apart, ASaveOfAllRanksTogetherDoesNotReplaceThemButRemovalMakesRoom) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveRanks(old_, 1, {0, 1}, *storage, false)));
  EXPECT_TRUE(FailsWith(SaveBoth(new_, *storage, true), StatusCode::kFailedPrecondition,
                        {"ranks that saved apart", "varve rm"}));
  EXPECT_EQ(SeenWhole(*storage), 1);
  EXPECT_TRUE(IsOk(CollectGarbage("s3://bucket/run", DryRun::kNo, *storage).status()));
  EXPECT_EQ(SeenWhole(*storage), 1);
  ASSERT_TRUE(IsOk(RemoveCheckpoint(kPath, DryRun::kNo, *storage).status()));
  EXPECT_TRUE(server.objects().empty());
  EXPECT_TRUE(IsOk(SaveBoth(new_, *storage, false)));
}

TEST_F(S3Apart, TheUploadOfADeadRankIsGarbageAndThatOfAnotherProgramStays) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveRanks(new_, 2, {0, 1}, *storage, false)));
  const std::string dead = std::string(kPath) + "/data-00001-of-00002-aaaaaaaaaaaa.safetensors";
  const auto left =
      BeginUploads(*storage, {dead, std::string(kPath) + "/data-of-a-user.safetensors"});
  EXPECT_EQ(server.open_uploads(), 2U);
  const auto report = CollectGarbage("s3://bucket/run", DryRun::kNo, *storage);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->removed, std::vector<std::string>{dead});
  EXPECT_EQ(server.open_uploads(), 1U);
  EXPECT_EQ(SeenWhole(*storage), 2);
}

}  // namespace
}  // namespace varve::test::s3_rank_local_fault_test
