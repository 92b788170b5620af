// Two saves to one name at once, and readers while a save is under way.

#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "crash/matrix.h"
#include "crash/saves.h"
#include "support/temp_dir.h"
#include "varve/catalogue.h"
#include "varve/manage.h"

namespace varve::test::race_test {
namespace {

constexpr const char* kPath = "runs/step-1";

void TwoThreadsSave(Storage& storage, const std::string& folder, int rounds) {
  const JobState a(1, 1);
  const JobState b(2, 1);
  for (int round = 0; round < rounds; ++round) {
    const std::string path = folder + "/" + std::to_string(round) + "/step-1";
    std::latch start(2);
    Status outcomes[2];
    {
      const auto save = [&](const JobState* job, Status* outcome) {
        start.arrive_and_wait();
        *outcome = SaveAlone(*job, path, storage, false);
      };
      const std::jthread first(save, &a, &outcomes[0]);
      const std::jthread second(save, &b, &outcomes[1]);
    }
    ASSERT_NE(outcomes[0].ok(), outcomes[1].ok())
        << outcomes[0].ToString() << "; " << outcomes[1].ToString();
    const Status& loser = outcomes[0].ok() ? outcomes[1] : outcomes[0];
    EXPECT_TRUE(loser.code() == StatusCode::kFailedPrecondition ||
                loser.code() == StatusCode::kAlreadyExists)
        << loser.ToString();
    EXPECT_TRUE(HoldsOneOf(path, storage, {outcomes[0].ok() ? &a.content() : &b.content()}));
    EXPECT_TRUE(HoldsNothingBut({path}, storage));
  }
}

TEST(TwoSaves, OneWinsInMemory) {
  MemoryStorage memory;
  TwoThreadsSave(memory, "runs", 50);
}

TEST(TwoSaves, OneWinsInMemoryWithoutLocks) {
  MemoryStorage memory({.locks = false});
  TwoThreadsSave(memory, "runs", 50);
}

TEST(TwoSaves, OneWinsOnDisk) {
  const TempDir dir;
  TwoThreadsSave(PosixStorage(), dir.path(), 20);
}

/// Runs `intruder` on the storage below just before the n-th operation of `action`, for every n.
/// Calls `check` after each. Returns how many operations there were.
int AtEveryOperation(const MemoryStorage& base, const Action& action, const Action& intruder,
                     const std::function<void(MemoryStorage&, const Status& outcome,
                                              const Status& intruder_outcome)>& check) {
  for (int n = 0;; ++n) {
    const testing::ScopedTrace trace("", 0, "before operation " + std::to_string(n));
    const auto memory = base.AfterKill();
    FaultyStorage watched(*memory);
    int seen = 0;
    Status intruder_outcome = Internal("never ran");
    watched.SetObserver([&](Operation, const std::string&) {
      if (seen++ == n) {
        intruder_outcome = intruder(*memory);
      }
    });
    const Status outcome = action(watched);
    if (seen <= n || testing::Test::HasFailure()) {
      return n;
    }
    check(*memory, outcome, intruder_outcome);
  }
}

TEST(TwoSaves, OneWinsWhereverTheOtherComesIn) {
  const JobState a(1, 1);
  const JobState b(2, 1);
  for (const bool locks : {true, false}) {
    const int points = AtEveryOperation(
        MemoryStorage({.locks = locks}), [&](Storage& s) { return SaveAlone(a, kPath, s, false); },
        [&](Storage& s) { return SaveAlone(b, kPath, s, false); },
        [&](MemoryStorage& memory, const Status& first, const Status& second) {
          EXPECT_NE(first.ok(), second.ok()) << first.ToString() << "; " << second.ToString();
          const Status& loser = first.ok() ? second : first;
          EXPECT_TRUE(loser.code() == StatusCode::kFailedPrecondition ||
                      loser.code() == StatusCode::kAlreadyExists)
              << loser.ToString();
          EXPECT_TRUE(HoldsOneOf(kPath, memory, {first.ok() ? &a.content() : &b.content()}));
          EXPECT_TRUE(HoldsNothingBut({kPath}, memory));
        });
    EXPECT_GE(points, 20);
  }
}

TEST(TwoSaves, OverwritesNeverMixWhereverTheOtherComesIn) {
  const JobState old(1, 1);
  const JobState a(2, 1);
  const JobState b(3, 1);
  for (const MemoryStorageOptions& options :
       {MemoryStorageOptions{}, MemoryStorageOptions{.exchange = false},
        MemoryStorageOptions{.locks = false},
        MemoryStorageOptions{.exchange = false, .locks = false}}) {
    SCOPED_TRACE(std::string(options.exchange ? "exchange" : "no exchange") +
                 (options.locks ? ", locks" : ", no locks"));
    MemoryStorage base(options);
    ASSERT_TRUE(IsOk(SaveAlone(old, kPath, base, false)));
    AtEveryOperation(
        base, [&](Storage& s) { return SaveAlone(a, kPath, s, true); },
        [&](Storage& s) { return SaveAlone(b, kPath, s, true); },
        [&](MemoryStorage& memory, const Status& first, const Status& second) {
          EXPECT_TRUE(first.ok() || second.ok()) << first.ToString() << "; " << second.ToString();
          std::vector<const Content*> winners;
          if (first.ok()) {
            winners.push_back(&a.content());
          }
          if (second.ok()) {
            winners.push_back(&b.content());
          }
          EXPECT_TRUE(HoldsOneOf(kPath, memory, winners));
          EXPECT_TRUE(!options.locks || HoldsNothingBut({kPath}, memory));
        });
  }
}

TEST(EmptyDirectory, IsTakenOnlyWhileItIsEmpty) {
  const JobState job(1, 1);
  MemoryStorage base;
  ASSERT_TRUE(IsOk(base.MakeDirectory("runs")));
  ASSERT_TRUE(IsOk(base.MakeDirectory(kPath)));
  const std::string notes = std::string(kPath) + "/notes.txt";
  AtEveryOperation(
      base, [&](Storage& s) { return SaveAlone(job, kPath, s, false); },
      [&](Storage& s) { return WriteWholeFile(s, notes, "mine"); },
      [&](MemoryStorage& memory, const Status& outcome, const Status&) {
        // In either order: the file is never removed, and no checkpoint is made around it.
        const bool before = ReadWholeFile(memory, notes, 100).ok();
        EXPECT_TRUE(before || outcome.ok());
        EXPECT_TRUE(!outcome.ok() || HoldsOneOf(kPath, memory, {&job.content()}));
        EXPECT_TRUE(outcome.ok() || outcome.code() == StatusCode::kAlreadyExists ||
                    outcome.code() == StatusCode::kFailedPrecondition)
            << outcome.ToString();
      });
}

TEST(RanksApartAtOnce, ADyingRankCannotTakeTheOldCheckpointAlong) {
  // Rank 0 comes in at any operation of rank 1 and dies at any of its own, in particular between
  // giving its file a name and syncing it, when rank 1 already sees the new checkpoint complete.
  const JobState old(1, 2);
  const JobState job(2, 2);
  MemoryStorage base;
  ASSERT_TRUE(IsOk(SaveApart(old, 1, {0, 1}, kPath, base, false)));
  for (std::uint64_t k = 0; k < 12 && !testing::Test::HasFailure(); ++k) {
    SCOPED_TRACE("rank 0 dies after " + std::to_string(k));
    std::unique_ptr<FaultyStorage> dying;
    AtEveryOperation(
        base, [&](Storage& s) { return SaveApart(job, 2, {1}, kPath, s, true); },
        [&](Storage& s) {
          dying = std::make_unique<FaultyStorage>(s);
          dying->StopAt(k);
          return SaveApart(job, 2, {0}, kPath, *dying, true);
        },
        [&](MemoryStorage& memory, const Status& outcome, const Status&) {
          EXPECT_TRUE(IsOk(outcome));
          for (const Survivor& survivor : Survivors(memory, 2, 2 * k)) {
            EXPECT_TRUE(HoldsOneOf(kPath, *survivor.storage, {&old.content(), &job.content()}))
                << survivor.how;
          }
          dying.reset();
        });
  }
}

TEST(ReaderDuringOverwrite, FindsTheOldOrTheNewAtEveryOperation) {
  const JobState old(1, 1);
  const JobState job(2, 1);
  for (const bool exchange : {true, false}) {
    MemoryStorage base({.exchange = exchange});
    ASSERT_TRUE(IsOk(SaveAlone(old, kPath, base, false)));
    AtEveryOperation(
        base, [&](Storage& s) { return SaveAlone(job, kPath, s, true); },
        [&](Storage& s) {
          EXPECT_TRUE(HoldsOneOf(kPath, s, {&old.content(), &job.content()}));
          return Status::Ok();
        },
        [](MemoryStorage&, const Status& outcome, const Status&) { EXPECT_TRUE(IsOk(outcome)); });
  }
}

TEST(ReaderDuringTheFirstSave, FindsNothingOrAllOfIt) {
  // Found by the simulator: what was published between two looks at the name was opened as a folder
  // of plain safetensors files.
  const JobState job(1, 1);
  AtEveryOperation(
      MemoryStorage{},
      [&](Storage& s) {
        const auto content = ReadContent(kPath, s);
        EXPECT_TRUE(!content.ok() || *content == job.content());
        return content.status();
      },
      [&](Storage& s) { return SaveAlone(job, kPath, s, false); },
      [](MemoryStorage&, const Status& outcome, const Status& saved) {
        EXPECT_TRUE(IsOk(saved));
        EXPECT_TRUE(outcome.ok() || outcome.code() == StatusCode::kNotFound) << outcome.ToString();
      });
}

TEST(ReaderDuringOverwrite, NeverTakesASaveThatStandsStillForDamage) {
  // Found by the simulator. The save comes in between any two operations of the reader and stops
  // after any of its own: with the old checkpoint moved aside, or half removed.
  const JobState old(1, 1);
  const JobState job(2, 1);
  const MemoryStorage empty({.exchange = false});
  const auto base = empty.AfterKill();
  ASSERT_TRUE(IsOk(SaveAlone(old, kPath, *base, false)));
  bool stopped = true;
  for (std::uint64_t k = 0; stopped && !testing::Test::HasFailure(); k += kEvery) {
    SCOPED_TRACE("the save stops after " + std::to_string(k));
    std::unique_ptr<FaultyStorage> dying;
    AtEveryOperation(
        *base,
        [&](Storage& s) {
          const auto content = ReadContent(kPath, s);
          EXPECT_TRUE(!content.ok() || *content == old.content() || *content == job.content());
          return content.status();
        },
        [&](Storage& s) {
          dying = std::make_unique<FaultyStorage>(s);
          dying->StopAt(k);
          return SaveAlone(job, kPath, *dying, true);
        },
        [&](MemoryStorage&, const Status& outcome, const Status&) {
          EXPECT_TRUE(outcome.ok() || outcome.code() == StatusCode::kFailedPrecondition)
              << outcome.ToString();
          stopped = dying->stopped();
          dying.reset();
        });
  }
}

TEST(RanksApart, NeverRemoveAFileOfACommittedCheckpoint) {
  // Found by the simulator: a rank that was still writing removed the data of the save that had
  // replaced its directory.
  const JobState apart(1, 1);
  const JobState job(2, 1);
  AtEveryOperation(
      MemoryStorage{}, [&](Storage& s) { return SaveApart(apart, 1, {0}, kPath, s, true); },
      [&](Storage& s) { return SaveAlone(job, kPath, s, true); },
      [&](MemoryStorage& memory, const Status& outcome, const Status& together) {
        EXPECT_TRUE(outcome.ok() || together.ok());
        EXPECT_TRUE(HoldsOneOf(kPath, memory, {together.ok() ? &job.content() : &apart.content()}));
      });
}

TEST(ReaderDuringOverwrite, NeverReadsAMixWhenTheSaveComesInBetween) {
  // The save happens as a whole between any two operations of the reader. A checkpoint that was
  // opened before may have been removed then: the error says so, and the reader gets neither wrong
  // bytes nor a report of damage.
  const JobState old(1, 1);
  const JobState job(2, 1);
  for (const bool exchange : {true, false}) {
    MemoryStorage base({.exchange = exchange});
    ASSERT_TRUE(IsOk(SaveAlone(old, kPath, base, false)));
    const int points = AtEveryOperation(
        base,
        [&](Storage& s) {
          const auto content = ReadContent(kPath, s);
          EXPECT_TRUE(!content.ok() || *content == old.content() || *content == job.content());
          return content.status();
        },
        [&](Storage& s) { return SaveAlone(job, kPath, s, true); },
        [](MemoryStorage&, const Status& outcome, const Status& saved) {
          EXPECT_TRUE(IsOk(saved));
          EXPECT_TRUE(outcome.ok() || outcome.code() == StatusCode::kFailedPrecondition)
              << outcome.ToString();
        });
    EXPECT_GE(points, 6);
  }
}

/// Verifies; DataLoss where damage is found.
Status Verified(Storage& storage) {
  const auto report = Verify(kPath, storage);
  VARVE_RETURN_IF_ERROR(report.status());
  return report->clean() ? Status::Ok() : DataLoss(report->damages.front().problem);
}

TEST(VerifyDuringOverwrite, FindsNoDamageWhenTheSaveComesInBetween) {
  const JobState old(1, 1);
  const JobState job(2, 1);
  for (const bool exchange : {true, false}) {
    MemoryStorage base({.exchange = exchange});
    ASSERT_TRUE(IsOk(SaveAlone(old, kPath, base, false)));
    AtEveryOperation(
        base, Verified, [&](Storage& s) { return SaveAlone(job, kPath, s, true); },
        [](MemoryStorage&, const Status& outcome, const Status& saved) {
          EXPECT_TRUE(IsOk(saved));
          EXPECT_TRUE(outcome.ok() || outcome.code() == StatusCode::kFailedPrecondition)
              << outcome.ToString();
        });
  }
}

TEST(VerifyDuringRemoval, FindsNoDamageWhereverTheRemovalComesIn) {
  const JobState job(1, 1);
  MemoryStorage base;
  ASSERT_TRUE(IsOk(SaveAlone(job, kPath, base, false)));
  AtEveryOperation(
      base, Verified, [&](Storage& s) { return RemoveCheckpoint(kPath, DryRun::kNo, s).status(); },
      [](MemoryStorage&, const Status& outcome, const Status& removed) {
        EXPECT_TRUE(IsOk(removed));
        EXPECT_NE(outcome.code(), StatusCode::kDataLoss) << outcome.ToString();
      });
}

TEST(VerifyDuringRemoval, KeepsTheStepFromTheRulesOfItsRun) {
  const TempDir dir;
  const std::string path = dir / "step-1";
  ASSERT_TRUE(IsOk(SaveAlone(JobState(1, 1), path, PosixStorage(), false)));
  Status removed;
  const auto report = Verify(path, PosixStorage(),
                             [&](std::uint64_t, std::uint64_t) { removed = RemoveStep(path); });
  EXPECT_TRUE(FailsWith(removed, StatusCode::kFailedPrecondition, {"is being read"}));
  EXPECT_TRUE(report.ok() && report->clean());
}

}  // namespace
}  // namespace varve::test::race_test
