// Saves by ranks that are not connected to each other on an S3 server: which of two is the newer,
// and what is no garbage.

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
};

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
