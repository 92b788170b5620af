// Errors of the storage, at every operation of a save, once and for ever.

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "catalogue/names.h"
#include "crash/matrix.h"
#include "crash/saves.h"

namespace varve::test::fault_test {
namespace {

constexpr const char* kPath = "runs/step-1";
/// The message of commit.cc for a failure after the new checkpoint was published.
constexpr std::string_view kVisible = "is visible but may not survive";

constexpr Operation kChanges[] = {
    Operation::kOpenForWrite,  Operation::kWrite,  Operation::kSync,   Operation::kMakeDirectory,
    Operation::kSyncDirectory, Operation::kRename, Operation::kRemove, Operation::kLock};

struct Case {
  const char* name;
  int ranks;
  bool coordinated;
  bool exchange;
};

class StorageFault : public testing::TestWithParam<Case> {
 protected:
  StorageFault()
      : old_(1, GetParam().ranks), new_(2, GetParam().ranks), next_(3, GetParam().ranks) {
    MemoryStorage memory({.exchange = GetParam().exchange});
    for (const Status& outcome : Save(old_, 1, memory)) {
      EXPECT_TRUE(IsOk(outcome));
    }
    base_ = memory.AfterPowerCut(PowerCut::kKeepAll);
  }

  /// Returns each rank's outcome; of uncoordinated ranks, up to the first failure.
  static std::vector<Status> Save(const JobState& job, std::uint8_t number, Storage& storage) {
    if (GetParam().coordinated) {
      return SaveTogether(
          job, kPath, std::vector<Storage*>(static_cast<std::size_t>(GetParam().ranks), &storage),
          /*overwrite=*/true);
    }
    return {SaveApart(job, number, {0, 1, 2}, kPath, storage, /*overwrite=*/true)};
  }

  /// Returns true when the fault was met, so that there may be a later one to try.
  bool Try(const Fault& fault) {
    const testing::ScopedTrace trace(
        "", 0,
        std::string(OperationName(fault.operation)) + " " + std::to_string(fault.number) +
            (fault.forever ? " and all later ones give " : " gives ") + fault.status.ToString());
    const auto memory = base_->AfterKill();
    FaultyStorage faulty(*memory);
    faulty.FailAt(fault);
    const std::vector<Status> outcomes = Save(new_, 2, faulty);
    const bool met = faulty.count(fault.operation) > fault.number;
    Check(*memory, outcomes, fault);
    for (const Status& outcome : Save(next_, 3, *memory)) {
      EXPECT_TRUE(IsOk(outcome));
    }
    EXPECT_TRUE(HoldsOneOf(kPath, *memory, {&next_.content()}));
    EXPECT_TRUE(HoldsNothingBut({kPath}, *memory));
    return met && !HasFailure();
  }

  void Check(MemoryStorage& memory, const std::vector<Status>& outcomes, const Fault& fault) {
    for (const Status& outcome : outcomes) {
      EXPECT_EQ(outcome.ToString(), outcomes[0].ToString());
    }
    const bool removing = fault.operation == Operation::kRemove;
    if (outcomes[0].ok()) {
      EXPECT_TRUE(HoldsOneOf(kPath, memory, {&new_.content()}));
      EXPECT_TRUE(removing || HoldsNothingBut({kPath}, memory));
      return;
    }
    EXPECT_TRUE(FailsWith(outcomes[0], fault.status.code(), {kPath, "injected"}));
    if (outcomes[0].message().find(kVisible) != std::string::npos) {
      EXPECT_EQ(fault.operation, Operation::kSyncDirectory);
      EXPECT_TRUE(HoldsOneOf(kPath, memory, {&new_.content()}));
      return;
    }
    if (!GetParam().coordinated) {
      // Files that other ranks have published stay: the old checkpoint is whole or, after the last
      // rank's rename, the new one.
      EXPECT_TRUE(HoldsOneOf(kPath, memory, {&old_.content(), &new_.content()}));
      return;
    }
    EXPECT_TRUE(HoldsOneOf(kPath, memory, {&old_.content()}));
    // A checkpoint that cannot be renamed back stays where readers find it.
    const bool displaced = fault.operation == Operation::kRename && fault.forever &&
                           memory.List(DisplacedPath(kPath)).ok();
    EXPECT_TRUE(removing || displaced || HoldsNothingBut({kPath}, memory));
  }

  JobState old_;
  JobState new_;
  JobState next_;
  std::unique_ptr<MemoryStorage> base_;
};

TEST_P(StorageFault, IsToldOnEveryRankAndLeavesTheOldCheckpoint) {
  std::uint64_t tried = 0;
  for (const Operation operation : kChanges) {
    for (const Status& status : {Unavailable("injected: I/O error"),
                                 Status(StatusCode::kOutOfSpace, "injected: no space left")}) {
      for (const bool forever : {false, true}) {
        for (std::uint64_t n = 0; Try({operation, n, forever, status}); n += kEvery) {
          tried += kEvery;
        }
        ASSERT_FALSE(HasFailure());
      }
    }
  }
  EXPECT_GE(tried, 60U);
  RecordProperty("faults", std::to_string(tried));
}

INSTANTIATE_TEST_SUITE_P(Saves, StorageFault,
                         testing::Values(Case{"Alone", 1, true, true},
                                         Case{"AloneWithoutExchange", 1, true, false},
                                         Case{"Together", 3, true, true},
                                         Case{"TogetherWithoutExchange", 3, true, false},
                                         Case{"Apart", 3, false, true}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(StorageFaultInAFirstSave, LeavesNothing) {
  const JobState job(1, 1);
  for (const Operation operation : {Operation::kOpenForWrite, Operation::kWrite, Operation::kSync,
                                    Operation::kSyncDirectory, Operation::kRename}) {
    for (std::uint64_t n = 0; !testing::Test::HasFailure(); ++n) {
      SCOPED_TRACE(std::string(OperationName(operation)) + " " + std::to_string(n));
      MemoryStorage memory;
      ASSERT_TRUE(IsOk(memory.MakeDirectory("runs")));
      FaultyStorage faulty(memory);
      faulty.FailAt({operation, n, false, {StatusCode::kOutOfSpace, "injected"}});
      const Status outcome = SaveAlone(job, kPath, faulty, false);
      if (outcome.ok()) {
        break;
      }
      EXPECT_TRUE(FailsWith(outcome, StatusCode::kOutOfSpace, {"injected"}));
      if (outcome.message().find(kVisible) == std::string::npos) {
        EXPECT_TRUE(memory.List("runs").value().empty());
      }
    }
  }
}

TEST(StorageFaultAmongManyWrites, EndsTheSave) {
  // Three blocks of the pipeline and a header, written by several threads.
  const JobState old(1, 1);
  const JobState job(2, 1, 120'000);
  MemoryStorage base;
  ASSERT_TRUE(IsOk(SaveAlone(old, kPath, base, false)));
  std::uint64_t n = 0;
  for (; !testing::Test::HasFailure(); ++n) {
    const auto memory = base.AfterKill();
    FaultyStorage faulty(*memory);
    faulty.FailAt({Operation::kWrite, n, n % 2 == 1, {StatusCode::kOutOfSpace, "injected"}});
    const Status outcome = SaveAlone(job, kPath, faulty, true);
    if (outcome.ok()) {
      EXPECT_TRUE(HoldsOneOf(kPath, *memory, {&job.content()}));
      break;
    }
    EXPECT_TRUE(FailsWith(outcome, StatusCode::kOutOfSpace, {"injected"}));
    EXPECT_TRUE(HoldsOneOf(kPath, *memory, {&old.content()}));
    EXPECT_TRUE(HoldsNothingBut({kPath}, *memory));
  }
  EXPECT_GE(n, 6U);  // Data, header, manifest and record.
}

}  // namespace
}  // namespace varve::test::fault_test
