// A save by one process or by coordinated ranks, stopped at each of its operations.

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "crash/matrix.h"
#include "crash/saves.h"

namespace varve::test::coordinated_crash_test {
namespace {

constexpr const char* kPath = "runs/step-1";

/// Three states of a job, and a storage that holds the first one or nothing.
class CrashMatrix : public testing::Test {
 protected:
  JobState old_{1, 1};
  JobState new_{2, 1};
  JobState next_{3, 1};

  Scenario FirstSave() {
    return {.path = kPath,
            .after = &new_.content(),
            .save = [this](Storage& s) { return SaveAlone(new_, kPath, s, false); },
            .next = &next_.content(),
            .save_next = [this](Storage& s) { return SaveAlone(next_, kPath, s, true); }};
  }

  Scenario Overwrite() {
    Scenario scenario = FirstSave();
    scenario.before = &old_.content();
    scenario.save = [this](Storage& s) { return SaveAlone(new_, kPath, s, true); };
    return scenario;
  }

  std::unique_ptr<MemoryStorage> WithOld(const MemoryStorageOptions& options = {}) {
    MemoryStorage memory(options);
    EXPECT_TRUE(IsOk(SaveAlone(old_, kPath, memory, false)));
    return memory.AfterPowerCut(PowerCut::kKeepSynced);
  }
};

TEST_F(CrashMatrix, FirstSaveIsWholeOrAbsent) {
  EXPECT_GE(RunMatrix(MemoryStorage(), FirstSave()).crash_points, 15U);
}

TEST_F(CrashMatrix, FirstSaveThroughTheCacheIsWholeOrAbsent) {
  RunMatrix(MemoryStorage({.direct = false, .cached = false}), FirstSave());
}

TEST_F(CrashMatrix, FirstSaveWithoutLocksIsWholeOrAbsent) {
  // Without locks no save can know whose stale files they are: the next save does not touch them.
  const MemoryStorage memory({.locks = false});
  ForEachCrash(memory, FirstSave().save, [&](MemoryStorage& left, const Status& outcome) {
    for (const Survivor& survivor : Survivors(left, 4)) {
      EXPECT_TRUE(HoldsOneOf(kPath, *survivor.storage, {&new_.content()}, !outcome.ok()))
          << survivor.how;
      EXPECT_TRUE(IsOk(SaveAlone(next_, kPath, *survivor.storage, true))) << survivor.how;
    }
  });
}

TEST_F(CrashMatrix, OverwriteByExchangeLeavesTheOldOrTheNew) {
  EXPECT_GE(RunMatrix(*WithOld(), Overwrite()).crash_points, 15U);
}

TEST_F(CrashMatrix, OverwriteWithoutExchangeLeavesTheOldOrTheNew) {
  EXPECT_GE(RunMatrix(*WithOld({.exchange = false}), Overwrite()).crash_points, 15U);
}

TEST_F(CrashMatrix, ASecondCrashInTheNextSaveHarmsNothing) {
  const auto next = [this](Storage& s) { return SaveAlone(next_, kPath, s, true); };
  RunDoubleMatrix(MemoryStorage(), FirstSave(), next, &next_.content());
}

TEST_F(CrashMatrix, ASecondCrashInTheNextOverwriteHarmsNothing) {
  const auto next = [this](Storage& s) { return SaveAlone(next_, kPath, s, true); };
  RunDoubleMatrix(*WithOld(), Overwrite(), next, &next_.content());
}

TEST_F(CrashMatrix, ASecondCrashInTheNextOverwriteWithoutExchangeHarmsNothing) {
  const auto next = [this](Storage& s) { return SaveAlone(next_, kPath, s, true); };
  RunDoubleMatrix(*WithOld({.exchange = false}), Overwrite(), next, &next_.content());
}

/// Three ranks that save together.
class CrashMatrixOfRanks : public testing::Test {
 protected:
  static constexpr int kRanks = 3;
  JobState old_{1, kRanks};
  JobState new_{2, kRanks};
  JobState next_{3, kRanks};

  static std::vector<Storage*> Shared(Storage& storage) {
    return std::vector<Storage*>(kRanks, &storage);
  }

  /// Saves by all ranks, which must return the same.
  static Status SaveShared(const JobState& job, Storage& storage, bool overwrite) {
    const auto outcomes = SaveTogether(job, kPath, Shared(storage), overwrite);
    for (const Status& outcome : outcomes) {
      EXPECT_EQ(outcome.ok(), outcomes[0].ok()) << outcome.ToString();
    }
    return outcomes[0];
  }

  std::unique_ptr<MemoryStorage> WithOld(const MemoryStorageOptions& options = {}) {
    MemoryStorage memory(options);
    EXPECT_TRUE(IsOk(SaveShared(old_, memory, false)));
    return memory.AfterPowerCut(PowerCut::kKeepSynced);
  }

  Scenario Overwrite() {
    return {.path = kPath,
            .before = &old_.content(),
            .after = &new_.content(),
            .save = [this](Storage& s) { return SaveShared(new_, s, true); },
            .next = &next_.content(),
            .save_next = [this](Storage& s) { return SaveShared(next_, s, true); },
            .seeds = 2};
  }

  /// Lets rank `victim` alone die at each of its operations; the others live on.
  void OneRankDies(const MemoryStorage& base, int victim) {
    for (std::uint64_t k = 0;; k += kEvery) {
      SCOPED_TRACE("rank " + std::to_string(victim) + " dies after " + std::to_string(k));
      const auto memory = base.AfterKill();
      FaultyStorage mortal(*memory);
      mortal.StopAt(k);
      std::vector<Storage*> storages = Shared(*memory);
      storages[static_cast<std::size_t>(victim)] = &mortal;
      const auto outcomes = SaveTogether(new_, kPath, storages, true, /*mortal=*/true);
      bool one_ok = false;
      for (const Status& outcome : outcomes) {
        one_ok = one_ok || outcome.ok();
      }
      if (mortal.stopped() && victim != 0) {
        EXPECT_TRUE(
            FailsWith(outcomes[0], StatusCode::kUnavailable, {"rank " + std::to_string(victim)}));
        EXPECT_FALSE(one_ok);
        EXPECT_TRUE(HoldsOneOf(kPath, *memory, {&old_.content()}));
        EXPECT_TRUE(HoldsNothingBut({kPath}, *memory));
      }
      std::vector<const Content*> allowed{&new_.content()};
      if (!one_ok) {
        allowed.push_back(&old_.content());
      }
      for (const Survivor& survivor : Survivors(*memory, 2)) {
        EXPECT_TRUE(HoldsOneOf(kPath, *survivor.storage, allowed)) << survivor.how;
        EXPECT_TRUE(IsOk(SaveShared(next_, *survivor.storage, true))) << survivor.how;
        EXPECT_TRUE(HoldsOneOf(kPath, *survivor.storage, {&next_.content()})) << survivor.how;
        EXPECT_TRUE(HoldsNothingBut({kPath}, *survivor.storage)) << survivor.how;
      }
      if (!mortal.stopped() || HasFailure()) {
        RecordProperty("crash_points", std::to_string(k));
        return;
      }
    }
  }
};

TEST_F(CrashMatrixOfRanks, OverwriteLeavesTheOldOrTheNewWhenAllDie) {
  EXPECT_GE(RunMatrix(*WithOld(), Overwrite()).crash_points, 20U);
}

TEST_F(CrashMatrixOfRanks, OverwriteWithoutExchangeLeavesTheOldOrTheNewWhenAllDie) {
  RunMatrix(*WithOld({.exchange = false}), Overwrite());
}

TEST_F(CrashMatrixOfRanks, TheOldOneStaysWhenAWriterDies) { OneRankDies(*WithOld(), 2); }

TEST_F(CrashMatrixOfRanks, TheOldOrTheNewStaysWhenTheCoordinatorDies) {
  OneRankDies(*WithOld(), 0);
}

TEST_F(CrashMatrixOfRanks, TheOldOrTheNewStaysWhenTheCoordinatorDiesWithoutExchange) {
  OneRankDies(*WithOld({.exchange = false}), 0);
}

}  // namespace
}  // namespace varve::test::coordinated_crash_test
