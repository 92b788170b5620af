// Work that is stopped before each of its operations in turn: it ends soon, and keeps its promises.

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "catalogue/names.h"
#include "crash/matrix.h"
#include "crash/saves.h"
#include "publish/claim.h"
#include "varve/catalogue.h"
#include "varve/convert.h"
#include "varve/manage.h"

namespace varve::test::stop_test {
namespace {

constexpr const char* kPath = "runs/step-1";
// Each of eight threads ends the item that it has begun, which takes up to about six operations.
// The clean-up and the message of the error take some more.
constexpr std::uint64_t kOperationsAfterStop = 80;

using Work = std::function<Status(Storage&, const std::stop_token&)>;
using Visit = std::function<void(MemoryStorage& left, const Status& outcome)>;

/// Runs `work` on copies of `base`, with stop requested before its operation 0, 1, 2, ..., until it
/// ends before it is asked to; kEvery apart. Calls `visit` after each. Returns at how many
/// operations it can be stopped.
std::uint64_t ForEachStop(const MemoryStorage& base, const Work& work, const Visit& visit) {
  std::uint64_t cancelled = 0;
  for (std::uint64_t k = 0;; k += kEvery) {
    const auto memory = base.AfterKill();
    FaultyStorage faulty(*memory);
    std::stop_source stop;
    std::mutex mutex;  // No thread gets on between the operation that stops and the stop.
    std::uint64_t operations = 0;
    faulty.SetObserver([&](Operation /*operation*/, const std::string& /*name*/) {
      const std::scoped_lock lock(mutex);
      if (operations++ == k) {
        stop.request_stop();
      }
    });
    const Status outcome = work(faulty, stop.get_token());
    const testing::ScopedTrace trace(
        "", 0, "stopped at operation " + std::to_string(k) + ": " + outcome.ToString());
    if (!outcome.ok()) {
      EXPECT_EQ(outcome.code(), StatusCode::kCancelled);
      EXPECT_LE(operations - k, kOperationsAfterStop);
      cancelled += kEvery;
    }
    visit(*memory, outcome);
    if (operations <= k || testing::Test::HasFailure()) {
      EXPECT_TRUE(outcome.ok());
      return cancelled;
    }
  }
}

void LookAtNothing(MemoryStorage& /*left*/, const Status& /*outcome*/) {}

class Stop : public testing::Test {
 protected:
  static constexpr int kRanks = 12;

  Stop() {
    const std::vector<Storage*> storages(kRanks, &base_);
    for (const Status& outcome : SaveTogether(job_, kPath, storages, /*overwrite=*/false)) {
      EXPECT_TRUE(IsOk(outcome));
    }
  }

  /// Saves copies of the checkpoint, so that there are some.
  void AddCopies() {
    for (const char* name : {"runs/step-2", "runs/step-3", "runs/step-4", "runs/step-5"}) {
      EXPECT_TRUE(IsOk(SaveAlone(JobState(1, 1), name, base_, false)));
    }
  }

  /// Returns options without the containers, which the state of a JobState does not fit.
  static ConvertOptions FlatAs(ConvertTarget to) {
    ConvertOptions options;
    options.to = to;
    options.rename = {{"model.", ""}};
    return options;
  }

  JobState job_{1, kRanks};
  MemoryStorage base_;
};

TEST_F(Stop, VerifyReportsNoDamageThatIsNotThere) {
  const Work verify = [](Storage& storage, const std::stop_token& stop) {
    const auto report = Verify(kPath, storage, {}, stop);
    EXPECT_TRUE(!report.ok() || report->clean());
    return report.status();
  };
  EXPECT_GE(ForEachStop(base_, verify, LookAtNothing), 20U);
}

TEST_F(Stop, VerifyOfOtherSoftwaresFilesEndsToo) {
  ASSERT_TRUE(IsOk(Convert(kPath, "runs/dcp", FlatAs(ConvertTarget::kDcp), base_).status()));
  const Work verify = [](Storage& storage, const std::stop_token& stop) {
    const auto report = Verify("runs/dcp", storage, {}, stop);
    EXPECT_TRUE(!report.ok() || report->clean());
    return report.status();
  };
  EXPECT_GE(ForEachStop(base_, verify, LookAtNothing), 5U);
}

TEST_F(Stop, DiffEnds) {
  AddCopies();
  const Work diff = [](Storage& storage, const std::stop_token& stop) {
    return Diff(kPath, "runs/step-2", storage, {}, stop).status();
  };
  EXPECT_GE(ForEachStop(base_, diff, LookAtNothing), 5U);
}

TEST_F(Stop, ListAndLatestEnd) {
  AddCopies();
  const Work list = [](Storage& storage, const std::stop_token& stop) {
    return ListCheckpoints("runs", storage, stop).status();
  };
  EXPECT_GE(ForEachStop(base_, list, LookAtNothing), 10U);
  const Work latest = [](Storage& storage, const std::stop_token& stop) {
    return NewestCheckpoint("runs", storage, stop).status();
  };
  EXPECT_GE(ForEachStop(base_, latest, LookAtNothing), 10U);
}

TEST_F(Stop, ConvertLeavesTheTargetOrNothing) {
  ASSERT_TRUE(IsOk(base_.MakeDirectory("out")));
  for (const auto to : {ConvertTarget::kVarve, ConvertTarget::kDcp, ConvertTarget::kSafetensors,
                        ConvertTarget::kHf, ConvertTarget::kTorch}) {
    const testing::ScopedTrace trace("", 0, "target " + std::to_string(static_cast<int>(to)));
    const Work convert = [to](Storage& storage, const std::stop_token& stop) {
      ConvertOptions options = FlatAs(to);
      options.memory_budget = 4096;
      options.stop = stop;
      return Convert(kPath, "out/x", options, storage).status();
    };
    const auto visit = [&](MemoryStorage& left, const Status& outcome) {
      std::vector<std::string> names;
      const auto entries = left.List("out").value();
      for (const DirectoryEntry& entry : entries) {
        if (entry.name != BaseName(LockPath("out/x"))) {
          names.push_back(entry.name);
        }
      }
      EXPECT_EQ(names, outcome.ok() ? std::vector<std::string>{"x"} : std::vector<std::string>{});
      EXPECT_EQ(CheckpointReader::Open("out/x", left).ok(), outcome.ok());
      EXPECT_TRUE(outcome.ok() || IsOk(convert(left, {})));
    };
    EXPECT_GE(ForEachStop(base_, convert, visit), 5U);
  }
}

TEST_F(Stop, GarbageThatIsLeftIsRemovedByTheNextCall) {
  ASSERT_TRUE(IsOk(SaveAlone(JobState(2, 1), "runs/b", base_, false)));
  for (const char* stale :
       {"0123456789abcdef0123456789abcde0", "0123456789abcdef0123456789abcde1"}) {
    const std::string staging = std::string("runs/.step-1.varve-saving-") + stale;
    ASSERT_TRUE(IsOk(base_.MakeDirectory(staging)));
    for (int i = 0; i < 40; ++i) {
      ASSERT_TRUE(IsOk(WriteWholeFile(
          base_, staging + "/data-" + std::to_string(i) + "-of-40.safetensors", "x")));
    }
  }
  const Work collect = [](Storage& storage, const std::stop_token& stop) {
    return CollectGarbage("runs", DryRun::kNo, storage, stop).status();
  };
  const auto visit = [&](MemoryStorage& left, const Status& /*outcome*/) {
    EXPECT_TRUE(HoldsOneOf(kPath, left, {&job_.content()}));
    EXPECT_TRUE(IsOk(collect(left, {})));
    EXPECT_TRUE(HoldsNothingBut({kPath, "runs/b"}, left));
  };
  EXPECT_GE(ForEachStop(base_, collect, visit), 20U);
}

TEST_F(Stop, RemovalLeavesAWholeCheckpointOrNone) {
  const Work remove = [](Storage& storage, const std::stop_token& stop) {
    return RemoveCheckpoint(kPath, DryRun::kNo, storage, stop).status();
  };
  const auto visit = [&](MemoryStorage& left, const Status& outcome) {
    const bool there = CheckpointReader::Open(kPath, left).ok();
    EXPECT_TRUE(HoldsOneOf(kPath, left, {&job_.content()}, /*may_be_absent=*/true));
    EXPECT_FALSE(there && outcome.ok());
    if (!outcome.ok()) {
      const char* const says = there ? "nothing was removed" : "varve gc";
      EXPECT_NE(outcome.message().find(says), std::string::npos);
    }
    ASSERT_TRUE(IsOk(CollectGarbage("runs", DryRun::kNo, left).status()));
    EXPECT_EQ(left.List("runs")->size(), there ? 1U : 0U);
  };
  EXPECT_GE(ForEachStop(base_, remove, visit), 10U);
}

TEST_F(Stop, RepairChangesNothingOrAll) {
  ASSERT_TRUE(IsOk(base_.Remove("runs/step-1/manifest.bin")));
  const Work repair = [](Storage& storage, const std::stop_token& stop) {
    return Repair(kPath, storage, stop).status();
  };
  const auto visit = [&](MemoryStorage& left, const Status& outcome) {
    EXPECT_EQ(HoldsOneOf(kPath, left, {&job_.content()}), outcome.ok());
    EXPECT_TRUE(IsOk(repair(left, {})));
  };
  EXPECT_GE(ForEachStop(base_, repair, visit), 20U);
}

TEST_F(Stop, RepairDoesNotBeginBesideASaveOfTheName) {
  ASSERT_TRUE(IsOk(base_.Remove("runs/step-1/manifest.bin")));
  auto save = LockName(base_, kPath);  // As each save takes it.
  ASSERT_TRUE(IsOk(save));
  EXPECT_TRUE(FailsWith(Repair(kPath, base_), StatusCode::kFailedPrecondition,
                        {"repair runs/step-1: a save of it is under way"}));
  save->reset();
  EXPECT_TRUE(IsOk(Repair(kPath, base_)));
}

TEST_F(Stop, ASaveThatVerifiesTheOldCheckpointFirstEnds) {
  const Work save = [](Storage& storage, const std::stop_token& stop) {
    SaveOptions options = SmallSave(false);
    options.overwrite = Overwrite::kDamaged;
    options.stop = stop;
    const Status saved = Save(JobState(2, 1).rank(0), kPath, options, storage).status();
    return saved.code() == StatusCode::kAlreadyExists ? Status::Ok() : saved;
  };
  const auto visit = [&](MemoryStorage& left, const Status& /*outcome*/) {
    EXPECT_TRUE(HoldsOneOf(kPath, left, {&job_.content()}));
    EXPECT_TRUE(HoldsNothingBut({kPath}, left));
  };
  EXPECT_GE(ForEachStop(base_, save, visit), 20U);
}

}  // namespace
}  // namespace varve::test::stop_test
