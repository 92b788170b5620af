// Saves by two ranks and loads, with a fault at each of the requests that they make of an S3
// server.

#include <algorithm>
#include <memory>
#include <thread>
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

namespace varve::test::s3_fault_test {
namespace {

constexpr const char* kPath = kS3Path;

TEST_F(S3Faults, ASaveOutlastsWhatPasses) {
  SaveWithEachFault({S3Fault::kUnavailable, S3Fault::kResetBefore, S3Fault::kResetAfter,
                     S3Fault::kInternalLate, S3Fault::kTruncated},
                    /*overwrite=*/false, /*must_succeed=*/true);
}

TEST_F(S3Faults, AnOverwriteOutlastsWhatPasses) {
  SaveWithEachFault({S3Fault::kUnavailable, S3Fault::kResetBefore, S3Fault::kResetAfter,
                     S3Fault::kInternalLate, S3Fault::kTruncated},
                    /*overwrite=*/true, /*must_succeed=*/true);
}

TEST_F(S3Faults, ARefusedRequestFailsTheSaveAndLeavesWhatWasThere) {
  SaveWithEachFault({S3Fault::kRefused}, /*overwrite=*/false, /*must_succeed=*/false);
  SaveWithEachFault({S3Fault::kRefused}, /*overwrite=*/true, /*must_succeed=*/false);
}

// A job that is killed sends no further request: it leaves what it has written.
TEST_F(S3Faults, AJobThatEndsAtAnyRequestLeavesTheOldOrTheNewAndGarbage) {
  for (const bool overwrite : {false, true}) {
    int requests = 0;
    for (int at = -1; at < requests; at += at < 0 ? 1 : kStep) {
      S3Server server;
      const auto storage = Open(server);
      if (overwrite) {
        ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
      }
      server.SetScript([&](const S3Request&, int index) {
        return at >= 0 && index >= at ? S3Fault::kRefused : S3Fault::kNone;
      });
      const Status saved = SaveBoth(new_, *storage, overwrite);
      requests = std::max(requests, at < 0 ? server.requests() : 0);
      server.SetScript({});
      const std::string what = "request " + std::to_string(at) + ": " + saved.ToString();
      const int before = overwrite ? 1 : 0;
      EXPECT_EQ(Seen(*storage), saved.ok() ? 2 : before) << what;
      // By the server's clock all of it is old.
      const Status collected = CollectGarbage("s3://bucket/run", DryRun::kNo, *storage).status();
      EXPECT_TRUE(collected.ok() ||
                  (server.objects().empty() && collected.code() == StatusCode::kNotFound))
          << what << collected.ToString();
      EXPECT_EQ(Seen(*storage), saved.ok() ? 2 : before) << what;
      EXPECT_EQ(server.open_uploads(), 0U) << what;
      const std::size_t left = server.objects().size();
      EXPECT_TRUE(IsOk(SaveBoth(new_, *storage, true))) << what;
      EXPECT_EQ(Seen(*storage), 2) << what;
      EXPECT_EQ(left, saved.ok() || overwrite ? server.objects().size() : 0U) << what;
    }
    EXPECT_GE(requests, 10);
  }
}

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

TEST_F(S3Faults, OfTwoSavesOfOneNameOneWins) {
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
    EXPECT_TRUE(first.ok() || second.ok()) << first.ToString() << " / " << second.ToString();
    EXPECT_FALSE(first.ok() && second.ok());
    EXPECT_EQ(Seen(*a), first.ok() ? 1 : 2);
    EXPECT_TRUE(IsOk(RemoveCheckpoint(kPath, DryRun::kNo, *a).status()));
    EXPECT_TRUE(server.objects().empty());
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

TEST_F(S3Faults, ARecordWhoseFateIsNotKnownKeepsItsData) {
  // Each answer to the record's PUT is lost; the first try is carried out, or only much later.
  for (const bool applied : {true, false}) {
    S3Server server;
    auto settings = QuickSettings(server);
    settings.retry.patience = std::chrono::milliseconds(30);
    s3::S3Storage storage(settings, [] { return s3::Credentials{"key", "secret", ""}; });
    ASSERT_TRUE(IsOk(SaveBoth(old_, storage, false)));
    std::string record;
    bool done = false;
    server.SetScript([&](const S3Request& request, int) {
      const bool is_record = request.method == "PUT" && request.path.ends_with("varve-2.json");
      if (is_record && !done) {
        record = request.body;
        done = true;
        return applied ? S3Fault::kResetAfter : S3Fault::kUnavailable;
      }
      return done ? S3Fault::kUnavailable : S3Fault::kNone;
    });
    EXPECT_TRUE(
        FailsWith(SaveBoth(new_, storage, true), StatusCode::kUnavailable, {"its data were kept"}));
    server.SetScript({});
    server.Put("bucket/run/step-1/varve-2.json", record);
    EXPECT_EQ(Seen(storage), 2);
  }
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

TEST_F(S3Faults, ARemovalBesideASaveLeavesWhatTheSaveWrites) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
  const std::string live = "bucket/run/step-1/varve-data-" + std::string(32, 'c') + "/data";
  ASSERT_TRUE(IsOk(WriteWholeFile(*storage, "s3://" + live, "of a save under way")));
  server.SetTime("2026-01-01T12:00:00.000Z", "Thu, 01 Jan 2026 13:00:00 GMT");
  ASSERT_TRUE(IsOk(RemoveCheckpoint(kPath, DryRun::kNo, *storage).status()));
  EXPECT_EQ(server.objects().size(), 1U);
  EXPECT_TRUE(server.objects().contains(live));
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
      "<ListBucketResult><Contents><Key>other/x</Key><Size>1</Size></Contents></ListBucketResult>";
  for (const char* const path : {"/bucket", "/bucket/"}) {
    server.SetPage(path, list);
  }
  EXPECT_TRUE(FailsWith(storage->Remove(kPath), StatusCode::kDataLoss, {"other/x"}));
  EXPECT_TRUE(server.objects().contains("bucket/other/x"));
}

TEST_F(S3Faults, AServerThatIsNotReachedIsNoAbsence) {
  auto settings = QuickSettings(S3Server());  // Which has ended.
  settings.retry.patience = std::chrono::milliseconds(20);
  s3::S3Storage storage(settings, [] { return s3::Credentials{"key", "secret", ""}; });
  EXPECT_TRUE(FailsWith(CheckpointReader::Open(kPath, storage).status(), StatusCode::kUnavailable));
  EXPECT_TRUE(
      FailsWith(NewestCheckpoint("s3://bucket/run", storage).status(), StatusCode::kUnavailable));
  EXPECT_TRUE(
      FailsWith(ListCheckpoints("s3://bucket/run", storage).status(), StatusCode::kUnavailable));
}

TEST_F(S3Faults, AnOverwriteRemovesAllOfWhatItReplaces) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
  const std::size_t objects = server.objects().size();
  ASSERT_TRUE(IsOk(SaveBoth(new_, *storage, true)));
  EXPECT_EQ(server.objects().size(), objects);
  EXPECT_EQ(server.open_uploads(), 0U);
}

TEST_F(S3Faults, AReaderOfAReplacedCheckpointIsToldSo) {
  S3Server server;
  const auto storage = Open(server);
  ASSERT_TRUE(IsOk(SaveBoth(old_, *storage, false)));
  const auto reader = CheckpointReader::Open(kPath, *storage);
  ASSERT_TRUE(reader.ok());
  ASSERT_TRUE(IsOk(SaveBoth(new_, *storage, true)));
  EXPECT_TRUE(FailsWith(ReadContent(**reader).status(), StatusCode::kFailedPrecondition,
                        {"overwritten by another save"}));
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

TEST_F(S3Faults, GarbageCollectionOutlastsWhatPassesAndNeverTakesTheCheckpoint) {
  const std::string dead = std::string(kPath) + "/varve-data-" + std::string(32, 'a');
  const std::string text(20'000, 'x');
  int requests = 0;  // As many as gc has made so far.
  for (const S3Fault fault :
       {S3Fault::kUnavailable, S3Fault::kResetBefore, S3Fault::kResetAfter, S3Fault::kInternalLate,
        S3Fault::kTruncated, S3Fault::kCorrupted, S3Fault::kRefused}) {
    for (int at = 0; at == 0 || at < requests; at += kStep) {
      S3Server server;
      const auto storage = Open(server);
      ASSERT_TRUE(IsOk(SaveBoth(new_, *storage, false)));
      const auto whole = server.objects();
      server.Put((dead + "/data").substr(5), "left by a dead save");
      auto open = storage->OpenForWrite(dead + "/upload", {});
      ASSERT_TRUE(IsOk((*open)->WriteAt(0, AsByteSpan(text))));
      ASSERT_EQ(server.open_uploads(), 1U);
      server.SetScript(
          [&](const S3Request&, int index) { return index == at ? fault : S3Fault::kNone; });
      const Status collected = CollectGarbage("s3://bucket/run", DryRun::kNo, *storage).status();
      requests = std::max(requests, server.requests());
      server.SetScript({});
      const bool passes = fault != S3Fault::kCorrupted && fault != S3Fault::kRefused;
      EXPECT_TRUE(!passes || collected.ok()) << "request " << at << ": " << collected.ToString();
      EXPECT_EQ(Seen(*storage), 2) << "request " << at << ", fault " << static_cast<int>(fault);
      EXPECT_TRUE(IsOk(CollectGarbage("s3://bucket/run", DryRun::kNo, *storage).status()));
      EXPECT_EQ(server.objects(), whole);
      EXPECT_EQ(server.open_uploads(), 0U);
    }
  }
  EXPECT_GE(requests, 5);
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
