#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "async/start.h"
#include "storages/faulty.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "support/training.h"
#include "varve/async_save.h"
#include "varve/catalogue.h"
#include "varve/storage.h"

namespace varve::stager_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::Load;
using test::TempDir;
using test::Training;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::unique_ptr<Stager> MakeStager(StagerOptions options = {.budget_bytes = 64 * kMiB}) {
  auto stager = Stager::Make(options);
  EXPECT_TRUE(IsOk(stager));
  return std::move(*stager);
}

TEST(AsyncSave, SavesWhatWasThereAtTheCallWhateverTrainingDoesNext) {
  const TempDir dir;
  const auto stager = MakeStager();
  for (const Format format : {Format::kVarve, Format::kDcp}) {
    Training training(20 * kMiB + 12345);
    const std::string before = training.memory;
    const std::string path = dir / std::string(FormatName(format));
    AsyncSaveOptions options;
    options.save.format = format;
    const AsyncSaveHandle save = AsyncSave(training.state(), path, options, *stager);
    EXPECT_TRUE(IsOk(save.staged().get()));
    training.Step();
    const auto& report = save.done().get();
    ASSERT_TRUE(IsOk(report));
    EXPECT_FALSE(report->in_waves);
    EXPECT_GT(report->bytes_written, before.size());
    EXPECT_TRUE(Load(path, before.size()) == before);
  }
}

TEST(AsyncSave, AnOverlappedSaveReturnsBeforeTheCopyAndSaysWhenItIsMade) {
  const TempDir dir;
  const auto stager = MakeStager();
  Training training(20 * kMiB);
  const std::string before = training.memory;
  std::atomic<int> told{0};
  AsyncSaveOptions options;
  options.overlapped = true;
  options.on_staged = [&](const Status& status) { told += status.ok() ? 1 : 100; };
  const AsyncSaveHandle save = AsyncSave(training.state(), dir / "c", options, *stager);
  ASSERT_TRUE(IsOk(save.staged().get()));
  training.Step();
  ASSERT_TRUE(IsOk(save.done().get()));
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(Load(dir / "c", before.size()) == before);
}

TEST(AsyncSave, AStateLargerThanTheMemoryIsSavedInWavesAndSaysSo) {
  const TempDir dir;
  const auto stager = MakeStager({.budget_bytes = 16 * kMiB});
  const Training training(60 * kMiB);
  const AsyncSaveHandle save = AsyncSave(training.state(), dir / "c", {}, *stager);
  EXPECT_TRUE(IsOk(save.staged().get()));
  const auto& report = save.done().get();
  ASSERT_TRUE(IsOk(report));
  EXPECT_TRUE(report->in_waves);
  EXPECT_TRUE(Load(dir / "c", training.memory.size()) == training.memory);
}

TEST(AsyncSave, ManySavesOneAfterTheOtherEachHaveTheirOwnContent) {
  const TempDir dir;
  const auto stager = MakeStager();
  Training training(18 * kMiB);
  std::vector<std::string> states;
  std::vector<AsyncSaveHandle> saves;
  for (int step = 0; step < 8; ++step) {
    states.push_back(training.memory);
    AsyncSaveOptions options;
    options.overlapped = step % 2 == 1;
    saves.push_back(AsyncSave(training.state(), dir / std::to_string(step), options, *stager));
    ASSERT_TRUE(IsOk(saves.back().staged().get()));
    training.Step();
  }
  stager->Drain();
  for (int step = 0; step < 8; ++step) {
    ASSERT_TRUE(IsOk(saves[static_cast<std::size_t>(step)].done().get()));
    EXPECT_TRUE(Load(dir / std::to_string(step), training.memory.size()) ==
                states[static_cast<std::size_t>(step)])
        << step;
  }
}

TEST(AsyncSave, FailsAsTheSynchronousSaveDoesAndTheNextOneWorks) {
  const TempDir dir;
  const auto stager = MakeStager();
  const Training training(kMiB);
  ASSERT_TRUE(IsOk(AsyncSave(training.state(), dir / "c", {}, *stager).done().get()));
  int told = 0;
  AsyncSaveOptions options;
  options.on_done = [&](const Result<AsyncSaveReport>& report) { told += report.ok() ? 100 : 1; };
  const AsyncSaveHandle again = AsyncSave(training.state(), dir / "c", options, *stager);
  EXPECT_TRUE(FailsWith(again.done().get(), StatusCode::kAlreadyExists));
  stager->Drain();
  EXPECT_EQ(told, 1);
  State nothing;
  nothing.tensors.push_back({"", DType::kUInt8, {4}, WholeBox({4})});
  const AsyncSaveHandle bad = AsyncSave(nothing, dir / "d", {}, *stager);
  EXPECT_TRUE(FailsWith(bad.staged().get(), StatusCode::kInvalidArgument));
  EXPECT_TRUE(FailsWith(bad.done().get(), StatusCode::kInvalidArgument));
  AsyncSaveOptions replacing;
  replacing.save.overwrite = Overwrite::kAlways;
  EXPECT_TRUE(IsOk(AsyncSave(training.state(), dir / "c", replacing, *stager).done().get()));
}

/// Options of a save that in effect writes until it is cancelled.
AsyncSaveOptions Endless() {
  AsyncSaveOptions options;
  options.save.max_write_bandwidth = 1000;
  return options;
}

TEST(AsyncSave, ATensorThatChangesWhileItIsCopiedIsFoundAndNothingIsSaved) {
  const TempDir dir;
  // The first save keeps the memory until it is cancelled: the step comes before the second copy.
  const auto stager = MakeStager({.budget_bytes = 16 * kMiB, .max_in_flight = 4});
  Training training(10 * kMiB);
  const AsyncSaveHandle first = AsyncSave(training.state(), dir / "a", Endless(), *stager);
  ASSERT_TRUE(IsOk(first.staged().get()));
  AsyncSaveOptions options;
  options.overlapped = true;
  options.check_torn = true;
  const AsyncSaveHandle save = AsyncSave(training.state(), dir / "c", options, *stager);
  training.Step();
  first.Cancel();
  EXPECT_TRUE(FailsWith(save.done().get(), StatusCode::kFailedPrecondition,
                        {"model.a", "while it was being staged"}));
  EXPECT_TRUE(FailsWith(first.done().get(), StatusCode::kCancelled));
  EXPECT_TRUE(FailsWith(CheckpointReader::Open(dir / "c"), StatusCode::kNotFound));
}

TEST(AsyncSave, ACancelledSaveEndsAndLeavesNothing) {
  const TempDir dir;
  const auto stager = MakeStager();
  const Training training(20 * kMiB);
  const AsyncSaveHandle save = AsyncSave(training.state(), dir / "c", Endless(), *stager);
  save.Cancel();
  EXPECT_TRUE(FailsWith(save.done().get(), StatusCode::kCancelled, {"cancelled"}));
  std::stop_source stop;
  AsyncSaveOptions options = Endless();
  options.save.stop = stop.get_token();
  const AsyncSaveHandle stopped = AsyncSave(training.state(), dir / "d", options, *stager);
  stop.request_stop();
  EXPECT_TRUE(FailsWith(stopped.done().get(), StatusCode::kCancelled));
  const auto entries = PosixStorage().List(dir.path());
  ASSERT_TRUE(IsOk(entries));
  EXPECT_TRUE(entries->empty());
}

TEST(AsyncSave, ADeadlineEndsASave) {
  const TempDir dir;
  const auto stager = MakeStager();
  const Training training(20 * kMiB);
  AsyncSaveOptions options = Endless();
  options.deadline = std::chrono::milliseconds(50);
  const AsyncSaveHandle save = AsyncSave(training.state(), dir / "c", options, *stager);
  EXPECT_TRUE(FailsWith(save.done().get(), StatusCode::kCancelled, {"deadline of 50 ms"}));
  EXPECT_TRUE(IsOk(AsyncSave(training.state(), dir / "d", {}, *stager).done().get()));
}

TEST(AsyncSave, EveryStepIsAnEventAndARetryAWarning) {
  const TempDir dir;
  const auto stager = MakeStager();
  const Training training(kMiB);
  FaultyStorage storage(PosixStorage());
  storage.FailAt({.operation = Operation::kWrite,
                  .number = 0,
                  .status = {StatusCode::kOutOfSpace, "full for now"}});
  std::vector<std::string> steps;
  std::vector<std::string> warnings;
  SetEventFunction([&](const Event& event) {
    (event.level == EventLevel::kWarning ? warnings : steps).push_back(event.message);
  });
  AsyncSaveOptions options;
  options.retries = 1;
  options.retry_delay = std::chrono::milliseconds(1);
  const std::string what = "save " + dir / "c: ";
  ASSERT_TRUE(IsOk(AsyncSave(training.state(), dir / "c", options, *stager, storage).done().get()));
  stager->Drain();
  SetEventFunction({});
  EXPECT_EQ(steps, (std::vector<std::string>{what + "planning -> copying",
                                             what + "copying -> waiting for its turn",
                                             what + "waiting for its turn -> writing",
                                             what + "writing -> ended", what + "is durable"}));
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_EQ(warnings[0].find(what + "attempt 1 has failed and is repeated"), 0U) << warnings[0];
  EXPECT_NE(warnings[0].find("full for now"), std::string::npos);
}

TEST(AsyncSave, AFailedWriteIsRepeatedFromTheCopy) {
  const TempDir dir;
  const auto stager = MakeStager();
  for (const int failures : {1, 3}) {
    Training training(20 * kMiB);
    const std::string before = training.memory;
    // Each attempt claims the name, and so makes a directory, once.
    FaultyStorage storage(PosixStorage());
    std::atomic<int> attempts{0};
    storage.SetObserver([&](Operation operation, const std::string&) {
      attempts += operation == Operation::kMakeDirectory ? 1 : 0;
    });
    storage.FailAt({.operation = Operation::kWrite,
                    .number = 0,
                    .forever = failures > 1,
                    .status = {StatusCode::kOutOfSpace, "full for now"}});
    AsyncSaveOptions options;
    options.retries = 2;
    options.retry_delay = std::chrono::milliseconds(1);
    const std::string path = dir / std::to_string(failures);
    const AsyncSaveHandle save = AsyncSave(training.state(), path, options, *stager, storage);
    training.Step();
    const auto& report = save.done().get();
    stager->Drain();
    if (failures == 1) {
      ASSERT_TRUE(IsOk(report));
      EXPECT_EQ(report->attempts, 2);
      EXPECT_EQ(attempts, 2);
      EXPECT_TRUE(Load(path, before.size()) == before);
    } else {
      EXPECT_TRUE(FailsWith(report, StatusCode::kOutOfSpace, {"3 attempts", "full for now"}));
      EXPECT_EQ(attempts, 3);
    }
  }
}

// A storage that hangs must not block training: the caller gets an error that names the save.
TEST(AsyncSave, InWavesADeadlineEndsTheCallOfASaveWhoseStorageDoesNotReturn) {
  const TempDir dir;
  const auto stager = MakeStager({.budget_bytes = 16 * kMiB});
  FaultyStorage storage(PosixStorage());
  std::promise<void> wake;
  const std::shared_future<void> awake = wake.get_future().share();
  storage.SetObserver([&](Operation operation, const std::string&) {
    if (operation == Operation::kWrite) {
      awake.wait();
    }
  });
  AsyncSaveOptions options;
  options.deadline = std::chrono::milliseconds(500);  // The storage is reached well before.
  options.stuck_grace = std::chrono::milliseconds(20);
  auto training = std::make_unique<Training>(64 * kMiB);
  const AsyncSaveHandle save = AsyncSave(training->state(), dir / "c", options, *stager, storage);
  EXPECT_FALSE(save.staged().get().ok());
  training.reset();  // No thread may read it any more, whatever the storage does next.
  EXPECT_FALSE(save.done().get().ok());
  wake.set_value();
  stager->Drain();
}

TEST(AsyncSave, AStorageThatDoesNotReturnIsNamedAndRefusedUntilItDoes) {
  const TempDir dir;
  const auto stager = MakeStager();
  const Training training(kMiB);
  FaultyStorage storage(PosixStorage());
  std::promise<void> wake;
  const std::shared_future<void> awake = wake.get_future().share();
  storage.SetObserver([&](Operation operation, const std::string&) {
    if (operation == Operation::kSync) {
      awake.wait();
    }
  });
  AsyncSaveOptions options;
  options.deadline = std::chrono::milliseconds(500);  // The storage is reached well before.
  options.stuck_grace = std::chrono::milliseconds(20);
  const AsyncSaveHandle save = AsyncSave(training.state(), dir / "c", options, *stager, storage);
  EXPECT_TRUE(FailsWith(save.done().get(), StatusCode::kUnavailable,
                        {"deadline of 500 ms", "does not return"}));
  EXPECT_TRUE(FailsWith(AsyncSave(training.state(), dir / "d", {}, *stager).done().get(),
                        StatusCode::kUnavailable, {"has not returned from the save of"}));
  wake.set_value();
  stager->Drain();
  EXPECT_TRUE(IsOk(AsyncSave(training.state(), dir / "d", {}, *stager).done().get()));
}

TEST(AsyncSave, ARankThatCannotTakePartTellsTheOthers) {
  const TempDir dir;
  auto front = MakeInProcessCoordinators(2);
  auto back = MakeInProcessCoordinators(2);
  const Training training(kMiB);
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      auto stager = Stager::Make({.budget_bytes = 64 * kMiB}, std::move(back[rank]));
      ASSERT_TRUE(IsOk(stager));
      const Status ready = rank == 1 ? InvalidArgument("a lambda cannot be stored") : Status::Ok();
      const AsyncSaveHandle save = StartSave(training.state(), dir / "c", {}, WriteWhen::kNow,
                                             **stager, *front[rank], PosixStorage(), ready);
      EXPECT_TRUE(FailsWith(save.done().get(), StatusCode::kInvalidArgument,
                            {"rank 1: a lambda cannot be stored"}));
    });
  }
}

// One rank has nothing to write, and so no copy.
TEST(AsyncSave, RanksRepeatAFailedWriteTogether) {
  const TempDir dir;
  auto front = MakeInProcessCoordinators(3);
  auto back = MakeInProcessCoordinators(3);
  const Training training(9 * kMiB);
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      auto stager = Stager::Make({.budget_bytes = 64 * kMiB}, std::move(back[rank]));
      ASSERT_TRUE(IsOk(stager));
      FaultyStorage storage(PosixStorage());
      if (rank == 1) {
        storage.FailAt({.operation = Operation::kWrite,
                        .number = 0,
                        .status = {StatusCode::kUnavailable, "I/O error"}});
      }
      AsyncSaveOptions options;
      options.retry_delay = std::chrono::milliseconds(1);
      const AsyncSaveHandle save = AsyncSave(rank == 2 ? State() : training.state(), dir / "c",
                                             options, **stager, *front[rank], storage);
      const auto& report = save.done().get();
      ASSERT_TRUE(IsOk(report));
      EXPECT_EQ(report->attempts, 2);
    });
  }
  ranks.clear();
  EXPECT_TRUE(Load(dir / "c", training.memory.size()) == training.memory);
}

TEST(AsyncSave, WhenBusyTheNextIsSkippedOrTakesTheNewestOnesPlace) {
  const TempDir dir;
  const Training training(20 * kMiB);
  const auto skipping =
      MakeStager({.budget_bytes = 64 * kMiB, .max_in_flight = 1, .when_busy = WhenBusy::kSkip});
  const AsyncSaveHandle first = AsyncSave(training.state(), dir / "a", Endless(), *skipping);
  const AsyncSaveHandle second = AsyncSave(training.state(), dir / "b", {}, *skipping);
  EXPECT_TRUE(FailsWith(second.done().get(), StatusCode::kCancelled, {"skipped"}));
  first.Cancel();
  (void)first.done().get();
  EXPECT_TRUE(IsOk(AsyncSave(training.state(), dir / "c", {}, *skipping).done().get()))
      << "who has waited for a save does not find it in the way";

  const auto replacing =
      MakeStager({.budget_bytes = 128 * kMiB, .max_in_flight = 2, .when_busy = WhenBusy::kReplace});
  const AsyncSaveHandle writing = AsyncSave(training.state(), dir / "d", Endless(), *replacing);
  const AsyncSaveHandle queued = AsyncSave(training.state(), dir / "e", {}, *replacing);
  const AsyncSaveHandle newest = AsyncSave(training.state(), dir / "f", {}, *replacing);
  writing.Cancel();
  EXPECT_TRUE(FailsWith(queued.done().get(), StatusCode::kCancelled, {"replaced by the save of"}));
  EXPECT_TRUE(IsOk(newest.done().get()));
}

TEST(AsyncSave, AStagerWaitsForItsSavesAndAbortGivesThemUp) {
  const TempDir dir;
  const Training training(20 * kMiB);
  {
    const auto stager = MakeStager();
    (void)AsyncSave(training.state(), dir / "a", {}, *stager);
  }
  EXPECT_TRUE(Load(dir / "a", training.memory.size()) == training.memory);
  const auto stager = MakeStager();
  const AsyncSaveHandle save = AsyncSave(training.state(), dir / "b", Endless(), *stager);
  stager->Abort();
  EXPECT_TRUE(FailsWith(save.done().get(), StatusCode::kCancelled, {"aborted"}));
}

TEST(AsyncSave, RanksSettleAndPublishTogether) {
  const TempDir dir;
  constexpr int kRanks = 3;
  auto front = MakeInProcessCoordinators(kRanks);
  auto back = MakeInProcessCoordinators(kRanks);
  const Training replicated(9 * kMiB);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto r = static_cast<std::size_t>(rank);
      auto stager = Stager::Make({.budget_bytes = 64 * kMiB}, std::move(back[r]));
      ASSERT_TRUE(IsOk(stager));
      for (int step = 0; step < 5; ++step) {
        AsyncSaveOptions options;
        options.overlapped = (step + rank) % 2 == 0;  // Each as it likes.
        const AsyncSaveHandle save =
            AsyncSave(replicated.state(), dir / std::to_string(step), options, **stager, *front[r]);
        if (step == 4 && rank == 1) {
          save.Cancel();
        }
        const auto& report = save.done().get();
        if (report.ok()) {
          EXPECT_LT(report->bytes_written, 6 * kMiB) << "replicas are stored once";
        }
        EXPECT_TRUE(step == 4 || report.ok()) << report.status().ToString();
      }
    });
  }
  ranks.clear();
  for (int step = 0; step < 4; ++step) {
    EXPECT_TRUE(Load(dir / std::to_string(step), replicated.memory.size()) == replicated.memory);
  }
}

// Found by ASan: the lock of the name lived as long as the handle.
TEST(AsyncSave, AHandleThatIsKeptKeepsNothingElse) {
  const TempDir dir;
  const auto stager = MakeStager();
  const Training training(kMiB);
  std::vector<AsyncSaveHandle> kept;
  for (int save = 0; save < 3; ++save) {
    FaultyStorage storage(PosixStorage());
    AsyncSaveOptions options;
    options.save.overwrite = Overwrite::kAlways;
    kept.push_back(AsyncSave(training.state(), dir / "latest", options, *stager, storage));
    ASSERT_TRUE(IsOk(kept.back().done().get())) << "the name is free again";
  }
}

TEST(AsyncSave, AFailureIsListedUntilTheNextSaveOfThatName) {
  const TempDir dir;
  const auto stager = MakeStager();
  const Training training(kMiB);
  FaultyStorage storage(PosixStorage());
  storage.FailAt({.operation = Operation::kSync,
                  .number = 0,
                  .status = {StatusCode::kUnavailable, "the disk\n\x1b[31m is gone"}});
  AsyncSaveOptions options;
  options.retries = 0;
  const AsyncSaveHandle save =
      AsyncSave(training.state(), dir / "step-7", options, *stager, storage);
  EXPECT_TRUE(FailsWith(save.done().get(), StatusCode::kUnavailable, {"the disk"}));
  auto listed = ListCheckpoints(dir.path());
  ASSERT_TRUE(IsOk(listed));
  ASSERT_EQ(listed->size(), 1U);
  EXPECT_EQ(listed->front().name, "step-7");
  EXPECT_EQ(listed->front().step, 7U);
  EXPECT_EQ(listed->front().state, CheckpointState::kFailed);
  EXPECT_NE(listed->front().detail.find("the disk"), std::string::npos);
  EXPECT_EQ(listed->front().detail.find('\x1b'), std::string::npos) << "goes to terminals";

  ASSERT_TRUE(IsOk(AsyncSave(training.state(), dir / "step-7", {}, *stager).done().get()));
  listed = ListCheckpoints(dir.path());
  ASSERT_TRUE(IsOk(listed));
  ASSERT_EQ(listed->size(), 1U);
  EXPECT_EQ(listed->front().state, CheckpointState::kWhole);

  ASSERT_TRUE(IsOk(WriteWholeFile(PosixStorage(), dir / ".step-8.varve-failed", "why")));
  ASSERT_TRUE(IsOk(CollectGarbage(dir.path(), DryRun::kNo)));
  listed = ListCheckpoints(dir.path());
  ASSERT_TRUE(IsOk(listed));
  EXPECT_EQ(listed->size(), 1U);
}

TEST(AsyncSave, RefusesOptionsThatMakeNoSense) {
  EXPECT_TRUE(FailsWith(Stager::Make({.max_in_flight = 0}), StatusCode::kInvalidArgument));
  EXPECT_TRUE(FailsWith(Stager::Make({.local_ranks = 0}), StatusCode::kInvalidArgument));
  EXPECT_TRUE(FailsWith(Stager::Make({.copy_threads = -1}), StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace varve::stager_test
