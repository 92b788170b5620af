// Saves by two ranks, loads and cleanups, as S3 servers see them. Saves with a fault at each request
// are cells of the crash matrix: crash_matrix_test.cc.

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "catalogue/open.h"
#include "crash/s3_faults.h"
#include "publish/commit.h"
#include "publish/remove.h"
#include "storage/s3/s3_storage.h"
#include "support/s3_server.h"
#include "support/status_matchers.h"
#include "varve/catalogue.h"
#include "varve/manage.h"

namespace varve::test::s3_fault_test {
namespace {

constexpr const char* kPath = kS3Path;

TEST_F(S3Faults, ALoadOutlastsWhatPassesAndNoticesWhatIsChanged) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveBoth(new_, *storage, false)));
  for (const S3Fault fault :
       {S3Fault::kUnavailable, S3Fault::kResetBefore, S3Fault::kResetAfter, S3Fault::kInternalLate,
        S3Fault::kTruncated, S3Fault::kCorrupted, S3Fault::kRefused}) {
    int requests = 0;
    for (int at = 0; at == 0 || at < requests; ++at) {
      server.SetScript(
          [&](const S3Request&, int index) { return index == at ? fault : S3Fault::kNone; });
      const auto content = ReadContent(kPath, *storage);
      requests = server.requests();
      if (fault == S3Fault::kCorrupted || fault == S3Fault::kRefused) {
        EXPECT_TRUE(!content.ok() || *content == new_.content()) << "request " << at;
      } else {
        ASSERT_TRUE(content.ok()) << "request " << at << ": " << content.status().ToString();
        EXPECT_TRUE(*content == new_.content());
      }
    }
    EXPECT_GE(requests, 5);
  }
}

TEST_F(S3Faults, ASaveThatTwoOthersHaveOvertakenFails) {
  S3Server server;
  const auto storage = Open(server);
  auto slow = Commit::Begin(*storage, kPath, {.id = SaveId{{9}}});
  ASSERT_TRUE(slow.ok());
  ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
  ASSERT_TRUE(IsOk(SaveBoth(new_, *storage, true)));
  const auto objects = server.objects();
  Metadata metadata;
  metadata.save_id = SaveId{{9}};
  const auto index = NativeIndex(metadata);
  ASSERT_TRUE(index.ok());
  ASSERT_TRUE(IsOk(WriteWholeFile(*storage, JoinPath((*slow)->staging(), "data"), "x")));
  EXPECT_TRUE(FailsWith((*slow)->Publish({}, *index), StatusCode::kAlreadyExists,
                        {"another save of this name was published meanwhile"}));
  slow->reset();
  EXPECT_EQ(server.objects(), objects);
}

TEST_F(S3Faults, GarbageCollectionKeepsWhatIsBelowABrokenRecord) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
  auto record = ReadCommitRecord(*storage, kPath);
  ASSERT_TRUE(record.ok());
  record->directory = "varve-data-" + std::string(32, 'b');  // There is no such directory.
  server.Put("bucket/run/step-1/varve-2.json", EncodeCommitRecord(*record));
  const auto report = CollectGarbage("s3://bucket/run", DryRun::kNo, *storage);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_TRUE(report->removed.empty());
  ASSERT_TRUE(IsOk(storage->Remove(std::string(kPath) + "/varve-2.json")));
  EXPECT_EQ(Seen(*storage), 1);
}

TEST_F(S3Faults, ARemovalLeavesTheCheckpointThatIsPublishedInItsMidst) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
  auto save = Commit::Begin(*storage, kPath, {.id = SaveId{{9}}, .overwrite = Overwrite::kAlways});
  ASSERT_TRUE(save.ok());
  server.SetTime("2026-01-01T12:00:00.000Z", "Thu, 01 Jan 2026 13:00:00 GMT");
  // Its data are under way when the removal lists the directory.
  ASSERT_TRUE(IsOk(WriteWholeFile(*storage, JoinPath((*save)->staging(), "data"), "x")));
  Metadata metadata;
  metadata.save_id = SaveId{{9}};
  const auto index = NativeIndex(metadata);
  ASSERT_TRUE(index.ok());
  const RemovalTerms terms{.still_goes = [&] { return (*save)->Publish({}, *index); }};
  ASSERT_TRUE(IsOk(RemoveUnlessUsed(kPath, terms, *storage).status()));
  const auto record = ReadCommitRecord(*storage, kPath);
  ASSERT_TRUE(IsOk(record));
  EXPECT_EQ(record->save_id, SaveId{{9}});
  const auto objects = server.objects();
  EXPECT_TRUE(objects.contains("bucket/run/step-1/" + record->directory + "/data"));
  EXPECT_TRUE(objects.contains("bucket/run/step-1/" + record->directory + "/manifest.bin"));
}

TEST_F(S3Faults, ARemovalTakesNoListOfOtherNames) {
  S3Server server;
  const auto storage = Open(server);
  server.Put("bucket/other/x", "1");
  const std::string list =
      "<ListBucketResult><Contents><Key>other/x</"
      "Key><Size>1</Size></Contents></ListBucketResult>";
  for (const char* const path : {"/bucket", "/bucket/"}) {
    server.SetPage(path, list);
  }
  EXPECT_TRUE(FailsWith(storage->Remove(kPath), StatusCode::kDataLoss, {"other/x"}));
  EXPECT_TRUE(server.objects().contains("bucket/other/x"));
}

TEST_F(S3Faults, AServerThatIsNotReachedIsNoAbsence) {
  auto settings = QuickSettings(S3Server());  // Which has ended.
  settings.retry.time_limit = std::chrono::milliseconds(20);
  s3::S3Storage storage(settings, [] { return s3::Credentials{"key", "secret", ""}; });
  EXPECT_TRUE(FailsWith(CheckpointReader::Open(kPath, storage).status(), StatusCode::kUnavailable));
  EXPECT_TRUE(
      FailsWith(NewestCheckpoint("s3://bucket/run", storage).status(), StatusCode::kUnavailable));
  EXPECT_TRUE(
      FailsWith(ListCheckpoints("s3://bucket/run", storage).status(), StatusCode::kUnavailable));
}

TEST_F(S3Faults, AServerThatIgnoresIfNoneMatchIsFoundOut) {
  S3Server server(/*obeys_if_none_match=*/false);
  EXPECT_TRUE(IsOk(SaveBoth(old_, *Open(server), false)));  // With a warning.
  EXPECT_EQ(SaveBoth(new_, *Open(server), false).code(), StatusCode::kAlreadyExists);
  s3::Settings strict = QuickSettings(server);
  strict.weak_publish = false;
  s3::S3Storage refusing(strict, [] { return s3::Credentials{"key", "secret", ""}; });
  EXPECT_TRUE(FailsWith(SaveBoth(new_, refusing, true), StatusCode::kUnimplemented,
                        {"If-None-Match", "VARVE_S3_PUBLISH"}));
  EXPECT_EQ(Seen(refusing), 1);
}

TEST_F(S3Faults, GarbageIsWhatNoRecordNamesAndIsADayOld) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveBoth(new_, *storage, false)));
  const auto whole = server.objects();
  // The server says that all objects are of the first of January.
  const std::string dead = "bucket/run/step-1/varve-data-" + std::string(32, 'a') + "/data";
  server.Put(dead, "left by a dead save");
  server.Put("bucket/run/step-1/notes.txt", "a user's");
  const auto report = CollectGarbage("s3://bucket/run", DryRun::kNo, *storage);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->removed, std::vector<std::string>{"s3://" + dead.substr(0, dead.size() - 5)});
  auto left = server.objects();
  EXPECT_EQ(left.erase("bucket/run/step-1/notes.txt"), 1U);
  EXPECT_EQ(left, whole);
}

TEST_F(S3Faults, AListShowsWhatSavesHaveWrittenAndNotPublished) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveBoth(new_, *storage, false)));
  const std::string data = "/varve-data-" + std::string(32, 'a');
  server.Put("bucket/run/step-2" + data + "/files/a", "five!");
  server.Put("bucket/run/step-3/notes.txt", "a user's");
  server.SetTime("2026-01-01T00:00:00.000Z", "Thu, 01 Jan 2026 13:00:00 GMT");
  auto listed = ListCheckpoints("s3://bucket/run", *storage);
  ASSERT_TRUE(IsOk(listed));
  ASSERT_EQ(listed->size(), 2U);
  EXPECT_EQ((*listed)[0].state, CheckpointState::kWhole);
  EXPECT_EQ((*listed)[1].name, "step-2");
  EXPECT_EQ((*listed)[1].step, 2U);
  EXPECT_EQ((*listed)[1].bytes, 5U);
  EXPECT_EQ((*listed)[1].state, CheckpointState::kSaving);
  server.SetTime("2026-01-01T00:00:00.000Z", "Sat, 03 Jan 2026 00:00:00 GMT");
  listed = ListCheckpoints("s3://bucket/run/step-2", *storage);
  ASSERT_TRUE(IsOk(listed));
  ASSERT_EQ(listed->size(), 1U);
  EXPECT_EQ(listed->front().name, "step-2");
  EXPECT_EQ(listed->front().state, CheckpointState::kStale);
  ASSERT_TRUE(IsOk(CollectGarbage("s3://bucket/run", DryRun::kNo, *storage)));
  listed = ListCheckpoints("s3://bucket/run", *storage);
  EXPECT_TRUE(listed.ok() && listed->size() == 1U);
}

TEST_F(S3Faults, UploadsOfADeadSaveAreGarbageAndThoseOfOthersStay) {
  S3Server server;
  const auto storage = Open(server);
  const std::string dead = std::string(kPath) + "/varve-data-" + std::string(32, 'a') + "/data";
  const auto left = BeginUploads(*storage, {dead, std::string("s3://bucket/run/a-users")});
  EXPECT_EQ(server.open_uploads(), 2U);
  const auto report = CollectGarbage("s3://bucket/run", DryRun::kNo, *storage);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->removed, std::vector<std::string>{dead});
  EXPECT_EQ(server.open_uploads(), 1U);
}

}  // namespace
}  // namespace varve::test::s3_fault_test
