// Deferred saves: the agent writes them when their trainer has exited.

#include <atomic>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

#include "save/session.h"
#include "support/agent.h"
#include "support/ranks.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "support/trainer.h"
#include "support/training.h"
#include "varve/agent.h"
#include "varve/async_save.h"
#include "varve/catalogue.h"

namespace varve::deferred_test {
namespace {

using namespace std::chrono_literals;
using test::AgentHere;
using test::FailsWith;
using test::IsOk;
using test::Load;
using test::TempDir;
using test::Trainer;
using test::Training;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kState = 20 * kMiB;
constexpr std::uint64_t kRoomForTwo = 48 * kMiB;

TEST(Deferred, NothingIsWrittenWhileTheTrainerLives) {
  AgentHere agent;
  const TempDir dir;
  const auto stager = agent.MakeStager(kRoomForTwo);
  const Training training(kState);
  const DeferredSaveHandle save = DeferSave(training.state(), dir / "1", {}, *stager);
  ASSERT_TRUE(IsOk(save.staged().get()));
  const auto& report = save.held().get();
  ASSERT_TRUE(IsOk(report));
  EXPECT_GT(report->bytes, kState);
  EXPECT_GT(report->seconds, 0);
  ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));  // Does not wait for it.
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  const auto status = AgentStatus(agent.directory());
  ASSERT_TRUE(IsOk(status));
  ASSERT_EQ(status->saves.size(), 1U);
  EXPECT_EQ(status->saves[0].path, dir / "1");
  EXPECT_EQ(status->saves[0].state, "kept");
}

TEST(Deferred, TheNewestIsWrittenWhenTheTrainerEndsAndLoadsFromMemory) {
  AgentHere agent;
  const TempDir dir;
  Training training(kState);
  for (const Format format : {Format::kVarve, Format::kDcp}) {
    const std::string name(FormatName(format));
    {
      const auto stager = agent.MakeStager(kRoomForTwo);
      for (int step = 0; step < 6; ++step) {
        training.Step();
        DeferSaveOptions options;
        options.save.format = format;
        const DeferredSaveHandle save =
            DeferSave(training.state(), dir / (name + std::to_string(step)), options, *stager);
        ASSERT_TRUE(IsOk(save.held().get()));
        EXPECT_LE(AgentStatus(agent.directory())->saves.size(), 2U);
      }
    }
    ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
    EXPECT_FALSE(std::filesystem::exists(dir / (name + "4")));
    const std::string newest = dir / (name + "5");
    EXPECT_TRUE(Load(newest, kState) == training.memory);
    EXPECT_TRUE(Verify(newest)->clean());
    std::atomic<std::uint64_t> from_memory = 0;  // Written by the threads of the load.
    const auto memory = OpenAgentMemory(
        newest, PosixStorage(), [&](std::uint64_t bytes) { from_memory += bytes; },
        agent.directory());
    ASSERT_NE(memory, nullptr);
    EXPECT_TRUE(Load(newest, kState, "", *memory) == training.memory);
    EXPECT_GE(from_memory, kState);
  }
}

TEST(Deferred, MemoryForOneCopyServesTheNewest) {
  AgentHere agent;
  const TempDir dir;
  Training training(kState);
  {
    const auto stager = agent.MakeStager(24 * kMiB);
    for (int step = 0; step < 4; ++step) {
      training.Step();
      const DeferredSaveHandle save =
          DeferSave(training.state(), dir / std::to_string(step), {}, *stager);
      ASSERT_TRUE(IsOk(save.held().get()));
    }
  }
  ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
  EXPECT_FALSE(std::filesystem::exists(dir / "2"));
  EXPECT_TRUE(Load(dir / "3", kState) == training.memory);
}

TEST(Deferred, ASaveThatHasBeenWrittenTakesItsPlaceAndOneThatHasFailedDoesNot) {
  AgentHere agent;
  const TempDir dir;
  const Training training(kState);
  {
    const auto stager = agent.MakeStager(3 * kRoomForTwo);
    ASSERT_TRUE(IsOk(DeferSave(training.state(), dir / "1", {}, *stager).held().get()));
    ASSERT_TRUE(IsOk(AsyncSave(training.state(), dir / "2", {}, *stager).done().get()));
    const auto status = AgentStatus(agent.directory());
    ASSERT_TRUE(IsOk(status));
    for (const AgentReport::File& save : status->saves) {
      EXPECT_NE(save.path, dir / "1");
    }
    ASSERT_TRUE(IsOk(DeferSave(training.state(), dir / "3", {}, *stager).held().get()));
    EXPECT_TRUE(FailsWith(AsyncSave(training.state(), dir / "2", {}, *stager).done().get().status(),
                          StatusCode::kAlreadyExists));
  }
  ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
  EXPECT_FALSE(std::filesystem::exists(dir / "1"));
  EXPECT_TRUE(Load(dir / "3", kState) == training.memory);
}

TEST(Deferred, WhereTheNewestCannotBeWrittenTheOneBeforeItIs) {
  AgentHere agent;
  const TempDir dir;
  const Training training(kState);
  const Training taken(kMiB);
  ASSERT_TRUE(IsOk(Save(taken.state(), dir / "2")));
  {
    const auto stager = agent.MakeStager(kRoomForTwo);
    for (const char* const name : {"1", "2"}) {
      ASSERT_TRUE(IsOk(DeferSave(training.state(), dir / name, {}, *stager).held().get()));
    }
  }
  ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
  EXPECT_TRUE(Load(dir / "1", kState) == training.memory);
  EXPECT_TRUE(Load(dir / "2", kMiB) == taken.memory);
}

TEST(Deferred, SavesOfOneNameReplaceEachOther) {
  AgentHere agent;
  const TempDir dir;
  Training training(kState);
  for (int round = 0; round < 2; ++round) {
    {
      const auto stager = agent.MakeStager(kRoomForTwo);
      DeferSaveOptions options;
      options.save.overwrite = Overwrite::kAlways;
      for (int step = 0; step < 3; ++step) {
        training.Step();
        const DeferredSaveHandle save = DeferSave(training.state(), dir / "c", options, *stager);
        ASSERT_TRUE(IsOk(save.held().get()));
        save.Cancel();  // Too late: it is kept.
      }
    }
    ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
    EXPECT_TRUE(Load(dir / "c", kState) == training.memory);
  }
}

TEST(Deferred, CancelGivesUpASaveThatWaitsForMemory) {
  AgentHere agent;
  const TempDir dir;
  const Training training(kState);
  const auto stager = agent.MakeStager(24 * kMiB);
  AsyncSaveOptions slow;
  slow.save.max_write_bandwidth = 1;  // Has the memory until it is cancelled.
  const AsyncSaveHandle first = AsyncSave(training.state(), dir / "slow", slow, *stager);
  ASSERT_TRUE(IsOk(first.staged().get()));
  DeferSaveOptions options;
  options.overlapped = true;
  int told = 0;
  options.on_held = [&](const Result<DeferredReport>& report) { told += report.ok() ? 100 : 1; };
  const DeferredSaveHandle save = DeferSave(training.state(), dir / "1", options, *stager);
  EXPECT_NE(save.held().wait_for(0s), std::future_status::ready);
  save.Cancel();
  EXPECT_TRUE(FailsWith(save.held().get().status(), StatusCode::kCancelled, {"cancelled"}));
  first.Cancel();
  stager->Drain();
  EXPECT_EQ(told, 1);
  ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
  EXPECT_FALSE(std::filesystem::exists(dir / "1"));
}

TEST(Deferred, DoesNotWaitForSavesThatAreWrittenNorTheyForIt) {
  AgentHere agent;
  const TempDir dir;
  const Training training(kState);
  StagerOptions options{.budget_bytes = 6 * kRoomForTwo, .max_in_flight = 4};
  auto stager = std::move(*Stager::Make(options, nullptr, agent.Connect()));
  AsyncSaveOptions slow;
  slow.save.max_write_bandwidth = 1;  // The save ends when it is cancelled, and not before.
  const AsyncSaveHandle first = AsyncSave(training.state(), dir / "slow", slow, *stager);
  for (int step = 0; step < 4; ++step) {
    const DeferredSaveHandle save =
        DeferSave(training.state(), dir / std::to_string(step), {}, *stager);
    ASSERT_TRUE(IsOk(save.held().get()));
  }
  EXPECT_NE(first.done().wait_for(0s), std::future_status::ready);
  first.Cancel();
  EXPECT_TRUE(FailsWith(first.done().get().status(), StatusCode::kCancelled, {"cancelled"}));
  EXPECT_TRUE(IsOk(AsyncSave(training.state(), dir / "last", {}, *stager).done().get()));
  stager.reset();
  ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
  EXPECT_FALSE(std::filesystem::exists(dir / "3"));
}

TEST(Deferred, OfRanksThatEndWhileTheySubmitTheOlderOneIsWhole) {
  AgentHere agent;
  const TempDir dir;
  const Training training(9 * kMiB);
  auto planning = MakeInProcessCoordinators(2);
  // Each rank has submitted the first save; only rank 0 the second.
  const auto handed = test::OnEveryRank(planning, [&](Coordinator& rank) -> Status {
    Trainer trainer(agent);
    const State state = training.state(std::to_string(rank.rank()));
    VARVE_RETURN_IF_ERROR(trainer.Submit(0, state, dir / "1", rank, /*deferred=*/true));
    if (rank.rank() == 0) {
      return trainer.Submit(1, state, dir / "2", rank, /*deferred=*/true);
    }
    const SaveOptions options;
    const std::string path = dir / "2";
    return MakeSaveSession(state, path, options, Claim::kApart, PosixStorage())
        ->Plan(rank, Status::Ok());
  });
  ASSERT_TRUE(IsOk(*handed[0]));
  ASSERT_TRUE(IsOk(*handed[1]));
  ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
  EXPECT_TRUE(Load(dir / "1", training.memory.size(), "0") == training.memory);
  EXPECT_TRUE(Load(dir / "1", training.memory.size(), "1") == training.memory);
  EXPECT_FALSE(std::filesystem::exists(dir / "2"));
}

TEST(Deferred, OneThatARankCouldNotSubmitTakesNoPlace) {
  AgentHere agent;
  const TempDir dir;
  auto front = MakeInProcessCoordinators(2);
  const Training small(9 * kMiB);
  const Training large(60 * kMiB);
  const auto done = test::OnEveryRank(front, [&](Coordinator& rank) -> Status {
    const auto stager = agent.MakeStager(kRoomForTwo);
    const std::string prefix = std::to_string(rank.rank());
    for (const char* const step : {"1", "2", "3"}) {
      const bool fits = rank.rank() == 0 || step == std::string("1");
      const State state = (fits ? small : large).state(prefix);
      const DeferredSaveHandle save = DeferSave(state, dir / step, {}, *stager, rank);
      EXPECT_EQ(save.held().get().ok(), fits) << step;
    }
    return Status::Ok();
  });
  ASSERT_TRUE(IsOk(*done[0]));
  ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
  EXPECT_TRUE(Load(dir / "1", small.memory.size(), "0") == small.memory);
  EXPECT_TRUE(Load(dir / "1", small.memory.size(), "1") == small.memory);
  EXPECT_FALSE(std::filesystem::exists(dir / "2"));
  EXPECT_FALSE(std::filesystem::exists(dir / "3"));
}

TEST(Deferred, OfSeveralRanksTheNewestIsWritten) {
  AgentHere agent;
  const TempDir dir;
  auto front = MakeInProcessCoordinators(3);
  const Training training(9 * kMiB);
  const auto done = test::OnEveryRank(front, [&](Coordinator& rank) -> Status {
    const auto stager = agent.MakeStager(kRoomForTwo);
    const std::string prefix = std::to_string(rank.rank());
    for (int step = 0; step < 8; ++step) {
      DeferSaveOptions options;
      options.overlapped = step % 2 == 1;
      const DeferredSaveHandle save =
          DeferSave(training.state(prefix), dir / std::to_string(step), options, *stager, rank);
      VARVE_RETURN_IF_ERROR(save.held().get().status());
    }
    return Status::Ok();
  });
  ASSERT_TRUE(IsOk(*done[0]));
  ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
  EXPECT_TRUE(Load(dir / "7", training.memory.size(), "2") == training.memory);
  EXPECT_FALSE(std::filesystem::exists(dir / "5"));
}

TEST(Deferred, TheNewerOneIsWholeWhenRanksThatHaveBothExitMinutesApart) {
  AgentHere agent;
  const TempDir dir;
  const Training training(9 * kMiB);
  auto planning = MakeInProcessCoordinators(2);
  const auto handed = test::OnEveryRank(planning, [&](Coordinator& rank) -> Status {
    Trainer trainer(agent);
    const State state = training.state(std::to_string(rank.rank()));
    VARVE_RETURN_IF_ERROR(trainer.Submit(0, state, dir / "1", rank, /*deferred=*/true));
    VARVE_RETURN_IF_ERROR(trainer.Submit(1, state, dir / "2", rank, /*deferred=*/true));
    if (rank.rank() == 0) {
      trainer.executor().Forget(0);     // This rank has begun the next save; the other has not.
      std::this_thread::sleep_for(1s);  // By now the other has ended, and begun to write the older
                                        // save.
    }
    return Status::Ok();
  });
  ASSERT_TRUE(IsOk(*handed[0]));
  ASSERT_TRUE(IsOk(*handed[1]));
  EXPECT_TRUE(
      IsOk(DrainAgent(60s, agent.directory())));  // No agent waits for the older save's rank 0.
  EXPECT_TRUE(Load(dir / "2", training.memory.size(), "0") == training.memory);
  EXPECT_TRUE(Load(dir / "2", training.memory.size(), "1") == training.memory);
}

TEST(Deferred, ARankThatEndsLaterThanTheOthersIsWaitedFor) {
  AgentHere agent;
  const TempDir dir;
  const Training training(9 * kMiB);
  auto planning = MakeInProcessCoordinators(2);
  const auto handed = test::OnEveryRank(planning, [&](Coordinator& rank) {
    Trainer trainer(agent);
    const Status status = trainer.Submit(0, training.state(std::to_string(rank.rank())), dir / "1",
                                         rank, /*deferred=*/true);
    // One rank waits for the other in a collective, until a launcher kills it.
    std::this_thread::sleep_for(rank.rank() == 0 ? 1200ms : 0ms);
    return status;
  });
  ASSERT_TRUE(IsOk(*handed[0]));
  ASSERT_TRUE(IsOk(*handed[1]));
  ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
  EXPECT_TRUE(Load(dir / "1", training.memory.size(), "0") == training.memory);
}

TEST(Deferred, NeedsAnotherProcessAndMemoryForAllOfIt) {
  AgentHere agent;
  const TempDir dir;
  const Training training(kState);
  const auto threads = std::move(*Stager::Make({.budget_bytes = kRoomForTwo}));
  EXPECT_TRUE(FailsWith(DeferSave(training.state(), dir / "1", {}, *threads).held().get().status(),
                        StatusCode::kInvalidArgument, {"only another process"}));
  const auto small = agent.MakeStager(16 * kMiB);
  EXPECT_TRUE(FailsWith(DeferSave(training.state(), dir / "1", {}, *small).held().get().status(),
                        StatusCode::kInvalidArgument, {"must fit into the staging memory"}));
  EXPECT_TRUE(IsOk(AsyncSave(training.state(), dir / "1", {}, *small).done().get()));
}

}  // namespace
}  // namespace varve::deferred_test
