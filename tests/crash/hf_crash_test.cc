// A save of whole-tensor safetensors files by three ranks, stopped at each of its operations.

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "crash/matrix.h"
#include "crash/saves.h"

namespace varve::test::hf_crash_test {
namespace {

constexpr const char* kPath = "runs/model";
constexpr int kRanks = 3;

class HfCrashMatrix : public testing::Test {
 protected:
  HfCrashMatrix() {
    for (JobState* const job : {&old_, &new_, &next_}) {
      job->LeaveTensorsAlone();
    }
  }

  static std::vector<Status> SaveByRanks(const JobState& job, const std::vector<Storage*>& storages,
                                         bool mortal = false) {
    return SaveTogether(job, kPath, storages, /*overwrite=*/true, mortal, Format::kSafetensors);
  }

  static Status SaveShared(const JobState& job, Storage& storage) {
    const auto outcomes = SaveByRanks(job, std::vector<Storage*>(kRanks, &storage));
    for (const Status& outcome : outcomes) {
      EXPECT_EQ(outcome.ok(), outcomes[0].ok()) << outcome.ToString();
    }
    return outcomes[0];
  }

  std::unique_ptr<MemoryStorage> WithOld(const MemoryStorageOptions& options = {}) {
    MemoryStorage memory(options);
    EXPECT_TRUE(IsOk(SaveShared(old_, memory)));
    return memory.AfterPowerCut(PowerCut::kKeepSynced);
  }

  Scenario Overwrite() {
    return {.path = kPath,
            .before = &old_.content(),
            .after = &new_.content(),
            .save = [this](Storage& s) { return SaveShared(new_, s); },
            .next = &next_.content(),
            .save_next = [this](Storage& s) { return SaveShared(next_, s); },
            .seeds = 2};
  }

  JobState old_{1, kRanks, 90};
  JobState new_{2, kRanks, 90};
  JobState next_{3, kRanks, 90};
};

TEST_F(HfCrashMatrix, OverwriteLeavesTheOldOrTheNewWhenAllDie) {
  EXPECT_GE(RunMatrix(*WithOld(), Overwrite()).crash_points, 20U);
}

TEST_F(HfCrashMatrix, OverwriteThroughTheCacheLeavesTheOldOrTheNewWhenAllDie) {
  RunMatrix(*WithOld({.direct = false, .cached = false}), Overwrite());
}

TEST_F(HfCrashMatrix, AFirstSaveIsWholeOrAbsent) {
  Scenario scenario = Overwrite();
  scenario.before = nullptr;
  EXPECT_GE(RunMatrix(MemoryStorage(), scenario).crash_points, 20U);
}

TEST_F(HfCrashMatrix, TheOldOneStaysWhenAWriterDies) {
  const auto base = WithOld();
  for (std::uint64_t k = 0;; ++k) {
    SCOPED_TRACE("rank 2 dies after " + std::to_string(k));
    const auto memory = base->AfterKill();
    FaultyStorage mortal(*memory);
    mortal.StopAt(k);
    const auto outcomes = SaveByRanks(new_, {memory.get(), memory.get(), &mortal}, true);
    if (!mortal.stopped() || HasFailure()) {
      EXPECT_TRUE(HoldsOneOf(kPath, *memory, {&new_.content()}));
      EXPECT_GE(k, 5U);
      return;
    }
    EXPECT_TRUE(FailsWith(outcomes[0], StatusCode::kUnavailable, {"rank 2"}));
    EXPECT_TRUE(HoldsOneOf(kPath, *memory, {&old_.content()}));
    EXPECT_TRUE(HoldsNothingBut({kPath}, *memory));
  }
}

TEST_F(HfCrashMatrix, AnErrorOfTheStorageIsToldOnEveryRankAndLeavesTheOldOne) {
  for (const Operation operation :
       {Operation::kOpenForWrite, Operation::kWrite, Operation::kSync}) {
    for (std::uint64_t number = 0;; ++number) {
      SCOPED_TRACE(std::string(OperationName(operation)) + " " + std::to_string(number));
      const auto memory = WithOld();
      FaultyStorage faulty(*memory);
      faulty.FailAt({operation, number, /*forever=*/true, Status(StatusCode::kOutOfSpace, "full")});
      const auto outcomes = SaveByRanks(new_, std::vector<Storage*>(kRanks, &faulty));
      if (outcomes[0].ok() || HasFailure()) {
        EXPECT_GT(number, 3U);
        break;
      }
      for (const Status& outcome : outcomes) {
        EXPECT_TRUE(FailsWith(outcome, StatusCode::kOutOfSpace, {"full"}));
      }
      EXPECT_TRUE(HoldsOneOf(kPath, *memory, {&old_.content()}));
    }
  }
}

}  // namespace
}  // namespace varve::test::hf_crash_test
