// Uploads of checkpoints by two ranks from a directory in memory to an S3 server: damage of the
// source, the notes of what is pending, and in layouts with fixed names of files claims that are
// taken over and what one that died leaves.

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "crash/copy_ways.h"
#include "crash/s3_faults.h"
#include "crash/saves.h"
#include "crash/states.h"
#include "publish/commit.h"
#include "storage/s3/s3_storage.h"
#include "storages/memory.h"
#include "support/archives.h"
#include "support/s3_server.h"
#include "support/status_matchers.h"
#include "varve/catalogue.h"
#include "varve/manage.h"
#include "varve/upload.h"

namespace varve::test::upload_crash_test {
namespace {

constexpr const char* kFrom = "run/step-1";
constexpr const char* kTo = "s3://bucket/run/step-1";
constexpr int kRanks = 2;

/// A server, and what one process knows of it and of the directory.
struct Site {
  Site()
      : remote(QuickSettings(server), [] { return s3::Credentials{"key", "secret", "token"}; }) {}

  Status Save(const JobState& job, const char* path, bool overwrite,
              Format format = Format::kVarve) {
    return SaveTogether(job, path, std::vector<Storage*>(kRanks, &both), overwrite, false,
                        format)[0];
  }

  /// Uploads by two ranks, which must return the same.
  Result<UploadReport> Upload(const UploadOptions& options = {}) {
    std::vector<Result<UploadReport>> outcomes(kRanks, Internal("not run"));
    auto coordinators = MakeInProcessCoordinators(kRanks);
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        outcomes[rank] = varve::Upload(kFrom, kTo, options, *coordinators[rank], both);
      });
    }
    threads.clear();
    EXPECT_EQ(outcomes[0].status().ToString(), outcomes[1].status().ToString());
    return outcomes[0];
  }

  /// Changes a byte of a file of the local checkpoint.
  void Damage(const std::string& name, std::uint64_t at) {
    const std::string path = JoinPath(kFrom, name);
    auto content = ReadWholeFile(both, path, 1 << 24);
    ASSERT_TRUE(IsOk(content));
    (*content)[at < content->size() ? at : content->size() - 1] ^= 1;
    ASSERT_TRUE(IsOk(WriteWholeFile(both, path, *content, false)));
  }

  S3Server server;
  MemoryStorage local;
  s3::S3Storage remote;
  WithSource both{local, remote};
};

/// Returns 0 where there is no checkpoint, else the number of the state that it has; -1 for
/// neither.
int Seen(Storage& storage, const std::vector<const JobState*>& states) {
  const auto content = ReadContent(kTo, storage);
  if (!content.ok()) {
    EXPECT_EQ(content.status().code(), StatusCode::kNotFound) << content.status().ToString();
    return 0;
  }
  for (std::size_t i = 0; i < states.size(); ++i) {
    const Content& want = states[i]->content();
    // Of tensors alone DCP has a structure all the same.
    if (content->tensors == want.tensors && content->objects == want.objects) {
      return static_cast<int>(i) + 1;
    }
  }
  return -1;
}

class UploadTo : public testing::Test {
 protected:
  JobState old_{1, kRanks, 200};
  JobState new_{2, kRanks, 200};
};

/// States that other software's layouts can hold.
class UploadOfTensorsTo : public UploadTo {
 protected:
  UploadOfTensorsTo() {
    old_.LeaveTensorsAlone();
    new_.LeaveTensorsAlone();
  }
};

TEST_F(UploadTo, AnObjectStoreMakesTheSameCheckpointOnceOnly) {
  Site site;
  ASSERT_TRUE(IsOk(site.Save(new_, kFrom, false)));
  const auto first = site.Upload();
  ASSERT_TRUE(IsOk(first));
  EXPECT_FALSE(first->was_there);
  EXPECT_EQ(first->files, kRanks + 2U);
  EXPECT_EQ(Seen(site.both, {&new_}), 1);
  const auto verified = Verify(kTo, site.both);
  ASSERT_TRUE(IsOk(verified));
  EXPECT_TRUE(verified->damages.empty());
  const auto objects = site.server.objects();
  const auto again = site.Upload();
  ASSERT_TRUE(IsOk(again));
  EXPECT_TRUE(again->was_there);
  EXPECT_EQ(site.server.objects(), objects);
}

TEST_F(UploadOfTensorsTo, NothingOfADamagedCheckpointIsPublished) {
  const Site probe;
  for (const Format format : {Format::kVarve, Format::kDcp}) {
    std::vector<std::string> names;
    for (std::size_t file = 0; file == 0 || file < names.size(); ++file) {
      for (const std::uint64_t at : {std::uint64_t{20}, std::uint64_t{9000}, ~std::uint64_t{0}}) {
        Site site;
        ASSERT_TRUE(IsOk(site.Save(new_, kFrom, false, format)));
        if (names.empty()) {
          const auto entries = site.both.List(kFrom);
          ASSERT_TRUE(IsOk(entries));
          for (const DirectoryEntry& entry : *entries) {
            names.push_back(entry.name);
          }
        }
        site.Damage(names[file], at);
        const auto uploaded = site.Upload();
        EXPECT_FALSE(uploaded.ok()) << names[file] << " at " << at;
        EXPECT_TRUE(site.server.objects().empty() || Seen(site.both, {&new_}) == 0);
        for (const auto& [name, content] : site.server.objects()) {
          EXPECT_NE(name.find("varve-probe"), std::string::npos) << name << " is left";
        }
      }
    }
    EXPECT_GE(names.size(), 3U);
  }
}

TEST_F(UploadTo, RanksThatSeeOtherCheckpointsFail) {
  Site site;
  ASSERT_TRUE(IsOk(site.Save(new_, kFrom, false)));
  MemoryStorage elsewhere;
  WithSource other(elsewhere, site.remote);
  ASSERT_TRUE(IsOk(SaveTogether(new_, kFrom, {&other, &other}, false)[0]));
  auto coordinators = MakeInProcessCoordinators(kRanks);
  Status first;
  Status second;
  {
    const std::jthread a(
        [&] { first = varve::Upload(kFrom, kTo, {}, *coordinators[0], site.both).status(); });
    const std::jthread b(
        [&] { second = varve::Upload(kFrom, kTo, {}, *coordinators[1], other).status(); });
  }
  EXPECT_TRUE(FailsWith(first, StatusCode::kFailedPrecondition, {"rank 1 sees another"}));
  EXPECT_EQ(first.ToString(), second.ToString());
  EXPECT_EQ(Seen(site.both, {&new_}), 0);
}

TEST_F(UploadTo, APendingUploadKeepsItsStepThroughAPowerCut) {
  Site site;
  ASSERT_TRUE(IsOk(NotePendingUpload(kFrom, kTo, site.both)));
  ASSERT_TRUE(IsOk(site.Save(old_, kFrom, false)));
  ASSERT_TRUE(IsOk(site.Save(new_, "run/step-2", false)));
  const auto after = site.local.AfterPowerCut(PowerCut::kKeepSynced);
  WithSource both(*after, site.remote);
  const auto pending = ListPendingUploads("run", both);
  ASSERT_TRUE(IsOk(pending));
  ASSERT_EQ(pending->size(), 1U);
  EXPECT_EQ(pending->front().path, kFrom);
  EXPECT_EQ(pending->front().to, kTo);
  KeepRules rules;
  rules.last = 1;
  const auto kept = PruneRun("run", rules, {}, both);
  ASSERT_TRUE(IsOk(kept));
  ASSERT_EQ(kept->size(), 2U);
  ASSERT_FALSE(kept->front().removed);
  EXPECT_EQ(kept->front().reasons.back(), std::string("its upload to ") + kTo + " is pending");
  ASSERT_TRUE(IsOk(ForgetPendingUpload(kFrom, both)));
  const auto pruned = PruneRun("run", rules, {}, both);
  ASSERT_TRUE(IsOk(pruned));
  EXPECT_TRUE(pruned->front().removed);
}

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

TEST_F(UploadOfTensorsTo, ASaveInDcpsFormatLeavesADirectoryThatAnUploadHas) {
  Site site;
  auto upload = BeginFixed(site, {"a.distcp", ".metadata"});
  ASSERT_TRUE(IsOk(upload));
  EXPECT_TRUE(FailsWith(site.Save(old_, kTo, false, Format::kDcp), StatusCode::kFailedPrecondition,
                        {"an upload or save of files with fixed names"}));
}

/// Checkpoints of hfai, whose layout has no file that is written last.
class UploadOfPartsTo : public testing::Test {
 protected:
  static void Put(Site& site) {
    ASSERT_TRUE(IsOk(MakeDirectories(site.both, kFrom)));
    for (int part = 0; part < 4; ++part) {
      const std::string name = "PART_00" + std::to_string(part) + ".pt";
      ASSERT_TRUE(IsOk(
          WriteWholeFile(site.both, JoinPath(kFrom, name), Golden("hfai/world4/" + name), false)));
    }
  }
};

TEST_F(UploadOfPartsTo, WhatOneLeavesThatDiedIsRemovedWhenItIsADayOld) {
  for (const bool is_whole : {false, true}) {
    Site site;
    Put(site);
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
  Put(site);
  ASSERT_TRUE(IsOk(site.Upload()));
  site.server.Put("bucket/run/step-1/.varve-uploading", "of one that died before its last step");
  EXPECT_TRUE(IsOk(CheckpointReader::Open(kTo, site.both)));
  ASSERT_TRUE(IsOk(site.remote.Remove(JoinPath(kTo, ".varve-uploaded"))));
  EXPECT_TRUE(FailsWith(CheckpointReader::Open(kTo, site.both), StatusCode::kFailedPrecondition,
                        {"under way there, or has died"}));
  const auto listed = ListCheckpoints(ParentPath(kTo), site.both);
  ASSERT_TRUE(IsOk(listed));  // The others of the run are listed with it.
  ASSERT_EQ(listed->size(), 1U);
  EXPECT_EQ(listed->front().state, CheckpointState::kIncomplete);
  ASSERT_TRUE(IsOk(site.remote.Remove(JoinPath(kTo, ".varve-uploading"))));
  EXPECT_TRUE(IsOk(CheckpointReader::Open(kTo, site.both)));  // As another program copies them.
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
