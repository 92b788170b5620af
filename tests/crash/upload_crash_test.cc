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
#include "crash/upload_site.h"
#include "storage/memory.h"
#include "storage/s3/s3_storage.h"
#include "support/s3_server.h"
#include "support/sanitized.h"
#include "support/status_matchers.h"
#include "varve/catalogue.h"
#include "varve/manage.h"
#include "varve/upload.h"

namespace varve::test::upload_crash_test {
namespace {

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
