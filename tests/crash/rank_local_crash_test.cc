// Uncoordinated saves, stopped at each operation of any rank.

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "crash/matrix.h"
#include "crash/saves.h"

namespace varve::test::rank_local_crash_test {
namespace {

constexpr const char* kPath = "runs/step-1";

/// Three ranks that save one after the other, in an order.
class CrashMatrixUncoordinated : public testing::TestWithParam<std::vector<int>> {
 protected:
  JobState old_{1, 3};
  JobState new_{2, 3};
  JobState next_{3, 3};

  Scenario FirstSave() {
    return {
        .path = kPath,
        .after = &new_.content(),
        .save = [this](Storage& s) { return SaveApart(new_, 2, GetParam(), kPath, s, false); },
        .next = &next_.content(),
        .save_next = [this](Storage& s) { return SaveApart(next_, 3, {1, 0, 2}, kPath, s, true); },
        .seeds = 2};
  }

  Scenario Overwrite() {
    Scenario scenario = FirstSave();
    scenario.before = &old_.content();
    scenario.save = [this](Storage& s) { return SaveApart(new_, 2, GetParam(), kPath, s, true); };
    return scenario;
  }

  std::unique_ptr<MemoryStorage> WithOld() {
    MemoryStorage memory;
    EXPECT_TRUE(IsOk(SaveApart(old_, 1, {0, 1, 2}, kPath, memory, false)));
    return memory.AfterPowerCut(PowerCut::kKeepSynced);
  }
};

TEST_P(CrashMatrixUncoordinated, FirstSaveIsWholeOrIncomplete) {
  EXPECT_GE(RunMatrix(MemoryStorage(), FirstSave()).crash_points, 25U);
}

TEST_P(CrashMatrixUncoordinated, OverwriteLeavesTheOldOrTheNew) {
  EXPECT_GE(RunMatrix(*WithOld(), Overwrite()).crash_points, 25U);
}

TEST_P(CrashMatrixUncoordinated, ASaveThatMayNotOverwriteFollowsADeadOne) {
  // The dead save never became a checkpoint, so its name is free.
  Scenario scenario = FirstSave();
  scenario.save_next = [this](Storage& s) {
    const Status status = SaveApart(next_, 3, {2, 1, 0}, kPath, s, false);
    // It did become one just before it died: then it stays.
    return status.code() == StatusCode::kAlreadyExists
               ? SaveApart(next_, 4, {2, 1, 0}, kPath, s, true)
               : status;
  };
  RunMatrix(MemoryStorage(), scenario);
}

TEST_P(CrashMatrixUncoordinated, ACoordinatedSaveFollowsADeadOne) {
  const JobState alone(5, 1);
  Scenario scenario = Overwrite();
  scenario.next = &alone.content();
  scenario.save_next = [&](Storage& s) { return SaveAlone(alone, kPath, s, true); };
  RunMatrix(*WithOld(), scenario);
}

/// Crashes squared: one order is enough.
class CrashMatrixUncoordinatedTwice : public CrashMatrixUncoordinated {};

TEST_P(CrashMatrixUncoordinatedTwice, ASecondCrashInTheNextOverwriteHarmsNothing) {
  Scenario scenario = Overwrite();
  scenario.seeds = 1;
  const auto next = [this](Storage& s) { return SaveApart(next_, 3, {1, 0, 2}, kPath, s, true); };
  RunDoubleMatrix(*WithOld(), scenario, next, &next_.content());
}

TEST_P(CrashMatrixUncoordinatedTwice, RanksThatGoOnMakeADeadRanksFileDurable) {
  // The first rank may die between giving its file a name and syncing it; the others complete the
  // save and remove the old one.
  Scenario scenario = Overwrite();
  scenario.save = [this](Storage& s) { return SaveApart(new_, 2, {0}, kPath, s, true); };
  const auto others = [this](Storage& s) { return SaveApart(new_, 2, {1, 2}, kPath, s, true); };
  RunDoubleMatrix(*WithOld(), scenario, others, nullptr);
}

INSTANTIATE_TEST_SUITE_P(AnOrder, CrashMatrixUncoordinatedTwice,
                         testing::Values(std::vector<int>{2, 0, 1}));

INSTANTIATE_TEST_SUITE_P(Orders, CrashMatrixUncoordinated,
                         testing::Values(std::vector<int>{0, 1, 2}, std::vector<int>{2, 0, 1},
                                         std::vector<int>{1, 2, 0}),
                         [](const auto& test) {
                           std::string name;
                           for (const int rank : test.param) {
                             name += std::to_string(rank);
                           }
                           return name;
                         });

}  // namespace
}  // namespace varve::test::rank_local_crash_test
