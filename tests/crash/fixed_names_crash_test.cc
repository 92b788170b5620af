// Uploads of layouts with fixed names of files to an S3 server, by two ranks: claims that are taken
// over, a crash at each of the requests, and what one that died leaves.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "crash/upload_site.h"
#include "publish/commit.h"
#include "support/archives.h"
#include "support/sanitized.h"
#include "support/status_matchers.h"
#include "varve/catalogue.h"
#include "varve/checkpoint.h"
#include "varve/upload.h"

namespace varve::test::upload_crash_test {
namespace {

/// Begins a commit of files with these names, the mark last.
Result<std::unique_ptr<Commit>> BeginFixed(Site& site, const std::vector<std::string>& names,
                                           bool in_place = false) {
  CommitTerms terms{
      .index = {.name = names.back(), .fixed = true, .in_place = in_place, .beside_others = true}};
  for (std::size_t i = 0; i + 1 < names.size(); ++i) {
    terms.brought.push_back({names[i]});
  }
  return Commit::Begin(site.remote, kTo, terms);
}

TEST_F(UploadOfTensorsTo, ALayoutWithFixedNamesReplacesAnotherInPlaceOnly) {
  Site site;
  ASSERT_TRUE(IsOk(site.Save(old_, kFrom, false, Format::kDcp)));
  ASSERT_TRUE(IsOk(site.Upload()));
  EXPECT_EQ(Seen(site.both, {&old_, &new_}), 1);
  ASSERT_TRUE(IsOk(site.Save(new_, kFrom, true, Format::kDcp)));
  EXPECT_TRUE(FailsWith(site.Upload({.overwrite = Overwrite::kAlways}), StatusCode::kAlreadyExists,
                        {"in place"}));
  EXPECT_EQ(Seen(site.both, {&old_, &new_}), 1);
  ASSERT_TRUE(IsOk(site.Upload({.in_place = true})));
  EXPECT_EQ(Seen(site.both, {&old_, &new_}), 2);
}

TEST_F(UploadOfTensorsTo, WhoseClaimWasTakenOverRemovesNothing) {
  Site site;
  ASSERT_TRUE(IsOk(site.Save(old_, kFrom, false, Format::kDcp)));
  auto lost = BeginFixed(site, {"a.distcp", ".metadata"});
  ASSERT_TRUE(IsOk(lost));
  UploadOptions in_place;
  in_place.in_place = true;
  ASSERT_TRUE(IsOk(site.Upload(in_place)));
  const auto published = site.server.objects();
  EXPECT_TRUE(FailsWith((*lost)->Publish({}, {{".metadata", "mine"}}),
                        StatusCode::kFailedPrecondition, {"taken it over"}));
  lost->reset();
  EXPECT_EQ(site.server.objects(), published);
  EXPECT_EQ(Seen(site.both, {&old_}), 1);
}

TEST_F(UploadOfTensorsTo, ThatFindsAMarkAtItsEndRemovesNothing) {
  Site site;
  auto late = BeginFixed(site, {"a.distcp", ".metadata"});
  ASSERT_TRUE(IsOk(late));
  site.server.Put("bucket/run/step-1/.metadata", "another's");
  site.server.Put("bucket/run/step-1/a.distcp", "another's");
  EXPECT_TRUE(FailsWith((*late)->Publish({}, {{".metadata", "mine"}}), StatusCode::kAlreadyExists,
                        {"it stays"}));
  late->reset();
  const auto objects = site.server.objects();
  EXPECT_EQ(objects.at("bucket/run/step-1/.metadata"), "another's");
  EXPECT_EQ(objects.at("bucket/run/step-1/a.distcp"), "another's");
  EXPECT_FALSE(objects.contains("bucket/run/step-1/.varve-uploading"));
}

TEST_F(UploadOfTensorsTo, ALayoutWithFixedNamesDoesNotTakeThePlaceOfVarvesOwn) {
  Site site;
  ASSERT_TRUE(IsOk(site.Save(old_, kTo, false)));
  ASSERT_TRUE(IsOk(site.Save(new_, kFrom, false, Format::kDcp)));
  const auto before = site.server.objects();
  UploadOptions options;
  for (const bool in_place : {false, true}) {
    options.in_place = in_place;
    EXPECT_TRUE(FailsWith(site.Upload(options).status(), StatusCode::kFailedPrecondition,
                          {"Varve's own format"}));
    EXPECT_EQ(site.server.objects(), before);
  }
}

TEST_F(UploadOfTensorsTo, ASaveInDcpsFormatLeavesADirectoryThatAnUploadHas) {
  Site site;
  auto upload = BeginFixed(site, {"a.distcp", ".metadata"});
  ASSERT_TRUE(IsOk(upload));
  EXPECT_TRUE(FailsWith(site.Save(old_, kTo, false, Format::kDcp), StatusCode::kFailedPrecondition,
                        {"an upload or save of files with fixed names"}));
}

TEST_F(UploadOfTensorsTo, ALayoutWithFixedNamesIsTheOldOrNothingOrTheNew) {
  int requests = 0;
  for (int at = -1; at < requests; at += at < 0 ? 1 : static_cast<int>(kEvery)) {
    Site site;
    ASSERT_TRUE(IsOk(site.Save(old_, kFrom, false, Format::kDcp)));
    ASSERT_TRUE(IsOk(site.Upload()));
    ASSERT_TRUE(IsOk(site.Save(new_, kFrom, true, Format::kDcp)));
    // As a crash: from there on nothing comes through.
    site.server.SetScript([&](const S3Request&, int index) {
      return at >= 0 && index >= at ? S3Fault::kRefused : S3Fault::kNone;
    });
    const auto uploaded = site.Upload({.in_place = true});
    requests = std::max(requests, site.server.requests());
    site.server.SetScript({});
    const int seen = Seen(site.both, {&old_, &new_});
    EXPECT_GE(seen, 0) << "request " << at;
    EXPECT_TRUE(!uploaded.ok() || seen == 2) << "request " << at;
    EXPECT_TRUE(FailsWith(site.Upload(), StatusCode::kAlreadyExists) ||
                FailsWith(site.Upload(), StatusCode::kFailedPrecondition) || uploaded.ok() ||
                Seen(site.both, {&new_}) == 1);
    EXPECT_TRUE(IsOk(site.Upload({.in_place = true})));
    EXPECT_EQ(Seen(site.both, {&old_, &new_}), 2);
  }
  EXPECT_GE(requests, 8);
}

/// Checkpoints of hfai, whose layout has no file that is written last.
class UploadOfPartsTo : public testing::Test {
 protected:
  static void Put(Site& site, const std::string& golden) {
    ASSERT_TRUE(IsOk(MakeDirectories(site.both, kFrom)));
    for (int part = 0; part < 4; ++part) {
      const std::string name = "PART_00" + std::to_string(part) + ".pt";
      ASSERT_TRUE(IsOk(WriteWholeFile(site.both, JoinPath(kFrom, name),
                                      Golden("hfai/" + golden + "/" + name), false)));
    }
  }

  /// Returns 0 where there is no checkpoint, 1 for the old one, 2 for the new one; -1 for a
  /// mixture.
  static int Seen(Site& site) {
    const auto reader = CheckpointReader::Open(kTo, site.both);
    if (!reader.ok()) {
      return 0;
    }
    int seen = 0;
    for (int part = 0; part < 4; ++part) {
      const std::string name = "PART_00" + std::to_string(part) + ".pt";
      const std::string content = site.server.objects().at("bucket/run/step-1/" + name);
      const int is = content == Golden("hfai/" + std::string(kOld) + "/" + name) ? 1 : 2;
      seen = part == 0 || seen == is ? is : -1;
    }
    return seen;
  }

  static constexpr const char* kOld = "world4";
  static constexpr const char* kNew = "world4-two-models";
};

TEST_F(UploadOfPartsTo, AreTheOldOrNothingOrTheNew) {
  int requests = 0;
  for (int at = -1; at < requests; at += at < 0 ? 1 : static_cast<int>(kEvery)) {
    Site site;
    Put(site, kOld);
    ASSERT_TRUE(IsOk(site.Upload()));
    EXPECT_EQ(Seen(site), 1);
    Put(site, kNew);
    EXPECT_TRUE(FailsWith(site.Upload(), StatusCode::kAlreadyExists, {"in place"}));
    EXPECT_EQ(Seen(site), 1);
    // As a crash: from there on nothing comes through.
    site.server.SetScript([&](const S3Request&, int index) {
      return at >= 0 && index >= at ? S3Fault::kRefused : S3Fault::kNone;
    });
    const auto uploaded = site.Upload({.in_place = true});
    requests = std::max(requests, site.server.requests());
    site.server.SetScript({});
    const int seen = Seen(site);
    EXPECT_GE(seen, 0) << "request " << at;
    EXPECT_TRUE(!uploaded.ok() || seen == 2) << "request " << at;
    EXPECT_TRUE(IsOk(site.Upload({.in_place = true})));
    EXPECT_EQ(Seen(site), 2);
  }
  EXPECT_GE(requests, 10);
}

TEST_F(UploadOfPartsTo, ADirectoryNeedNoMark) {
  Site site;
  Put(site, kNew);
  ASSERT_TRUE(IsOk(varve::Upload(kFrom, "copy", {}, site.both)));
  const auto entries = site.both.List("copy");
  ASSERT_TRUE(IsOk(entries));
  EXPECT_EQ(entries->size(), 4U);
  EXPECT_TRUE(IsOk(CheckpointReader::Open("copy", site.both)));
}

TEST_F(UploadOfPartsTo, WhatOneLeavesThatDiedIsRemovedWhenItIsADayOld) {
  for (const bool is_whole : {false, true}) {
    Site site;
    Put(site, kOld);
    auto dead = BeginFixed(site, {"PART_000.pt", "a/b", ".varve-uploaded"});
    ASSERT_TRUE(IsOk(dead));
    site.server.Put("bucket/run/step-1/PART_000.pt", Golden("hfai/world4/PART_000.pt"));
    site.server.Put("bucket/run/step-1/a/b", "part of it");
    site.server.Put("bucket/run/step-1/users", "the user's");
    if (is_whole) {
      site.server.Put("bucket/run/step-1/.varve-uploaded", "whole");
    }
    (*dead)->Leave();
    dead->reset();
    site.server.SetTime("2026-01-01T00:00:00.000Z", "Thu, 01 Jan 2026 13:00:00 GMT");
    const auto kept = CollectGarbage("s3://bucket/run", {}, site.both);
    ASSERT_TRUE(IsOk(kept));
    EXPECT_TRUE(kept->removed.empty()) << "it may live";
    site.server.SetTime("2026-01-01T00:00:00.000Z", "Sat, 03 Jan 2026 00:00:00 GMT");
    const auto collected = CollectGarbage("s3://bucket/run", {}, site.both);
    ASSERT_TRUE(IsOk(collected));
    EXPECT_EQ(collected->removed.size(), is_whole ? 1U : 3U);
    const auto after = site.server.objects();
    EXPECT_FALSE(after.contains("bucket/run/step-1/.varve-uploading"));
    EXPECT_EQ(after.contains("bucket/run/step-1/PART_000.pt"), is_whole);
    EXPECT_EQ(after.contains("bucket/run/step-1/a/b"), is_whole);
    EXPECT_TRUE(after.contains("bucket/run/step-1/users"));
  }
}

TEST_F(UploadOfPartsTo, WithAClaimAndNoMarkAreNoCheckpoint) {
  Site site;
  Put(site, kOld);
  ASSERT_TRUE(IsOk(site.Upload()));
  site.server.Put("bucket/run/step-1/.varve-uploading", "of one that died before its last step");
  EXPECT_EQ(Seen(site), 1);
  ASSERT_TRUE(IsOk(site.remote.Remove(JoinPath(kTo, ".varve-uploaded"))));
  EXPECT_TRUE(FailsWith(CheckpointReader::Open(kTo, site.both), StatusCode::kFailedPrecondition,
                        {"under way there, or has died"}));
  const auto listed = ListCheckpoints(ParentPath(kTo), site.both);
  ASSERT_TRUE(IsOk(listed));  // The others of the run are listed with it.
  ASSERT_EQ(listed->size(), 1U);
  EXPECT_EQ(listed->front().state, CheckpointState::kIncomplete);
  ASSERT_TRUE(IsOk(site.remote.Remove(JoinPath(kTo, ".varve-uploading"))));
  EXPECT_EQ(Seen(site), 1);  // As another program copies them.
}

TEST_F(UploadTo, FilesThatArePartOfNoCheckpointStay) {
  Site site;
  site.server.Put("bucket/run/step-1/train.pt", "the user's");
  EXPECT_TRUE(FailsWith(BeginFixed(site, {"train.pt", "config.yaml"}, true),
                        StatusCode::kAlreadyExists, {"train.pt", "is not removed"}));
  EXPECT_EQ(site.server.objects().at("bucket/run/step-1/train.pt"), "the user's");
  EXPECT_FALSE(site.server.objects().contains("bucket/run/step-1/.varve-uploading"));
}

}  // namespace
}  // namespace varve::test::upload_crash_test
