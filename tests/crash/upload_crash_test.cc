// Uploads of checkpoints by two ranks from a directory in memory to an S3 server: damage of the
// source, a fault at each of the requests, and the notes of what is pending.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "crash/saves.h"
#include "crash/states.h"
#include "publish/fixed_names.h"
#include "storage/memory.h"
#include "storage/s3/s3_storage.h"
#include "support/archives.h"
#include "support/s3_server.h"
#include "support/sanitized.h"
#include "support/status_matchers.h"
#include "varve/catalogue.h"
#include "varve/manage.h"
#include "varve/upload.h"

namespace varve::test::upload_crash_test {
namespace {

constexpr const char* kFrom = "run/step-1";
constexpr const char* kTo = "s3://bucket/run/step-1";
constexpr int kRanks = 2;

/// A directory in memory and an object store, told apart by the name.
class TwoStorages final : public Storage, private ConditionalWrites {
 public:
  TwoStorages(Storage& local, Storage& remote)
      : Storage({.hard_links = nullptr,
                 .symbolic_links = nullptr,
                 .empty_directories = nullptr,
                 .file_locks = nullptr,
                 .conditional_writes = this}),
        local_(local),
        remote_(remote) {}
  Result<std::unique_ptr<WritableFile>> OpenForWrite(const std::string& name,
                                                     const WriteOptions& options) override {
    return Of(name).OpenForWrite(name, options);
  }
  Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& name) override {
    return Of(name).OpenForRead(name);
  }
  Result<std::vector<DirectoryEntry>> List(const std::string& name) override {
    return Of(name).List(name);
  }
  Status MakeDirectory(const std::string& name) override { return Of(name).MakeDirectory(name); }
  Status SyncDirectory(const std::string& name) override { return Of(name).SyncDirectory(name); }
  Status Rename(const std::string& from, const std::string& to, RenameMode mode) override {
    return Of(from).Rename(from, to, mode);
  }
  Status Remove(const std::string& name) override { return Of(name).Remove(name); }
  Result<std::unique_ptr<StorageLock>> Lock(const std::string& name) override {
    return Of(name).Lock(name);
  }

 private:
  bool Serves(const std::string& name) override { return name.starts_with("s3://"); }
  Status WriteIfAbsent(const std::string& name, std::string_view content) override {
    return writes().WriteIfAbsent(name, content);
  }
  Status Replace(const std::string& name, std::string_view content) override {
    return writes().Replace(name, content);
  }
  Result<std::vector<Unfinished>> ListUnfinished(const std::string& name) override {
    return writes().ListUnfinished(name);
  }
  Status RemoveUnfinished(const Unfinished& file) override {
    return writes().RemoveUnfinished(file);
  }
  Result<bool> Prepare(const std::string& name) override { return writes().Prepare(name); }
  std::int64_t NowNs(const std::string& name) override { return writes().NowNs(name); }
  ConditionalWrites& writes() { return *remote_.extras().conditional_writes; }
  Storage& Of(const std::string& name) { return Serves(name) ? remote_ : local_; }

  Storage& local_;
  Storage& remote_;
};

/// A server, and what one process knows of it and of the directory.
struct Site {
  Site() : remote(SettingsOf(server), [] { return s3::Credentials{"key", "secret", "token"}; }) {}

  static s3::Settings SettingsOf(const S3Server& server) {
    s3::Settings settings;
    settings.endpoint = server.endpoint();
    settings.part_bytes = 8192;
    settings.stall = std::chrono::seconds(5);
    settings.retry = {.first = std::chrono::milliseconds(1),
                      .longest = std::chrono::milliseconds(2),
                      .patience = std::chrono::milliseconds(5'000)};
    return settings;
  }

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
  TwoStorages both{local, remote};
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

TEST_F(UploadTo, AnotherSaveNeedsOverwrite) {
  Site site;
  ASSERT_TRUE(IsOk(site.Save(old_, kFrom, false)));
  ASSERT_TRUE(IsOk(site.Upload()));
  ASSERT_TRUE(IsOk(site.Save(new_, kFrom, true)));
  EXPECT_TRUE(FailsWith(site.Upload(), StatusCode::kAlreadyExists));
  EXPECT_EQ(Seen(site.both, {&old_, &new_}), 1);
  ASSERT_TRUE(IsOk(site.Upload({.overwrite = Overwrite::kAlways})));
  EXPECT_EQ(Seen(site.both, {&old_, &new_}), 2);
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

TEST_F(UploadTo, AnObjectStoreOutlastsWhatPassesAndKeepsTheOldWhereItFails) {
  for (const S3Fault fault : {S3Fault::kUnavailable, S3Fault::kResetBefore, S3Fault::kResetAfter,
                              S3Fault::kInternalLate, S3Fault::kTruncated, S3Fault::kRefused}) {
    int requests = 0;
    for (int at = -1; at < requests; at += at < 0 ? 1 : static_cast<int>(kEvery)) {
      Site site;
      ASSERT_TRUE(IsOk(site.Save(old_, kFrom, false)));
      ASSERT_TRUE(IsOk(site.Upload()));
      ASSERT_TRUE(IsOk(site.Save(new_, kFrom, true)));
      site.server.SetScript(
          [&](const S3Request&, int index) { return index == at ? fault : S3Fault::kNone; });
      const auto uploaded = site.Upload({.overwrite = Overwrite::kAlways});
      requests = std::max(requests, site.server.requests());
      site.server.SetScript({});
      EXPECT_TRUE(uploaded.ok() || fault == S3Fault::kRefused)
          << "request " << at << ": " << uploaded.status().ToString();
      EXPECT_EQ(Seen(site.both, {&old_, &new_}), uploaded.ok() ? 2 : 1) << "request " << at;
      EXPECT_TRUE(IsOk(site.Upload({.overwrite = Overwrite::kAlways})));
      EXPECT_EQ(Seen(site.both, {&old_, &new_}), 2);
    }
    EXPECT_GE(requests, 10);
  }
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
  auto lost = FixedNames::Begin(site.remote, kTo, {"a.distcp", ".metadata"}, false);
  ASSERT_TRUE(IsOk(lost));
  UploadOptions in_place;
  in_place.in_place = true;
  ASSERT_TRUE(IsOk(site.Upload(in_place)));
  const auto published = site.server.objects();
  EXPECT_TRUE(
      FailsWith((*lost)->Publish("mine"), StatusCode::kFailedPrecondition, {"taken it over"}));
  lost->reset();
  EXPECT_EQ(site.server.objects(), published);
  EXPECT_EQ(Seen(site.both, {&old_}), 1);
}

TEST_F(UploadOfTensorsTo, ThatFindsAMarkAtItsEndRemovesNothing) {
  Site site;
  auto late = FixedNames::Begin(site.remote, kTo, {"a.distcp", ".metadata"}, false);
  ASSERT_TRUE(IsOk(late));
  site.server.Put("bucket/run/step-1/.metadata", "another's");
  site.server.Put("bucket/run/step-1/a.distcp", "another's");
  EXPECT_TRUE(FailsWith((*late)->Publish("mine"), StatusCode::kAlreadyExists, {"it stays"}));
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
  auto upload = FixedNames::Begin(site.remote, kTo, {"a.distcp", ".metadata"}, false);
  ASSERT_TRUE(IsOk(upload));
  EXPECT_TRUE(FailsWith(site.Save(old_, kTo, false, Format::kDcp), StatusCode::kFailedPrecondition,
                        {"an upload to it"}));
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
    auto dead =
        FixedNames::Begin(site.remote, kTo, {"PART_000.pt", "a/b", ".varve-uploaded"}, false);
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

TEST_F(UploadTo, RanksThatSeeOtherCheckpointsFail) {
  Site site;
  ASSERT_TRUE(IsOk(site.Save(new_, kFrom, false)));
  MemoryStorage elsewhere;
  TwoStorages other(elsewhere, site.remote);
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

TEST_F(UploadOfTensorsTo, ADirectoryMakesTheSameCheckpoint) {
  Site site;
  for (const Format format : {Format::kVarve, Format::kDcp}) {
    const std::string to = format == Format::kVarve ? "copies/a" : "copies/b";
    ASSERT_TRUE(IsOk(site.Save(new_, kFrom, true, format)));
    ASSERT_TRUE(IsOk(varve::Upload(kFrom, to, {}, site.both)));
    const auto content = ReadContent(to, site.both);
    ASSERT_TRUE(IsOk(content));
    EXPECT_TRUE(content->tensors == new_.content().tensors);
  }
}

TEST_F(UploadTo, APendingUploadKeepsItsStepThroughAPowerCut) {
  Site site;
  ASSERT_TRUE(IsOk(NotePendingUpload(kFrom, kTo, site.both)));
  ASSERT_TRUE(IsOk(site.Save(old_, kFrom, false)));
  ASSERT_TRUE(IsOk(site.Save(new_, "run/step-2", false)));
  const auto after = site.local.AfterPowerCut(PowerCut::kKeepSynced);
  TwoStorages both(*after, site.remote);
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

}  // namespace
}  // namespace varve::test::upload_crash_test
