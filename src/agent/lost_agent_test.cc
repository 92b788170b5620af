// A trainer that has lost its agent. The agent lives; the trainer receives no more of its messages.

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "async/job.h"
#include "async/submission.h"
#include "storages/faulty.h"
#include "support/agent.h"
#include "support/ranks.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "support/training.h"
#include "varve/agent.h"
#include "varve/async_save.h"
#include "varve/storage.h"

namespace varve::lost_agent_test {
namespace {

using test::AgentHere;
using test::FailsWith;
using test::IsOk;
using test::Load;
using test::TempDir;
using test::Training;

/// Loses the agent just before, or just after, it has written a submission.
class LosingExecutor final : public SaveExecutor {
 public:
  LosingExecutor(std::shared_ptr<SaveExecutor> real, bool before)
      : real_(std::move(real)), before_(before) {}

  Status Attach(int fd, std::uint64_t blocks) override { return real_->Attach(fd, blocks); }
  Status Submit(std::uint64_t ticket, const Submission& save, bool* sent) override {
    Submission slow = save;
    slow.options.save.max_write_bandwidth = before_ ? 1 : 0;
    return real_->Submit(ticket, slow, sent);
  }
  void Pass(std::uint64_t ticket) override { real_->Pass(ticket); }
  Result<AsyncSaveReport> Wait(std::uint64_t ticket, bool* lost) override {
    if (before_) {
      real_->Cancel(ticket);
    }
    (void)real_->Wait(ticket, lost);
    *lost = true;
    return Unavailable("the agent has died");
  }
  bool Holds(std::uint64_t ticket) override { return real_->Holds(ticket); }
  void Cancel(std::uint64_t ticket) override { real_->Cancel(ticket); }
  void Forget(std::uint64_t ticket) override { real_->Forget(ticket); }

 private:
  const std::shared_ptr<SaveExecutor> real_;
  const bool before_;
};

Result<AsyncSaveReport> SaveAndLose(AgentHere& agent, const Training& training,
                                    const std::string& path, bool before) {
  auto stager =
      Stager::Make({}, nullptr, std::make_shared<LosingExecutor>(agent.Connect(), before));
  EXPECT_TRUE(IsOk(stager));
  return AsyncSave(training.state(), path, {}, **stager).done().get();
}

TEST(LostAgent, ThatHadPublishedMakesNoFailureOfItsSave) {
  AgentHere agent;
  const TempDir dir;
  const Training training(std::uint64_t{20} << 20);
  const auto report = SaveAndLose(agent, training, dir / "c", /*before=*/false);
  ASSERT_TRUE(IsOk(report));
  EXPECT_GT(report->bytes_written, training.memory.size());
  EXPECT_TRUE(Load(dir / "c", training.memory.size()) == training.memory);
}

// Seed 70190 of the simulator: the agent was killed between the rename and the sync, the trainer
// saw the checkpoint and reported it, and a power cut took it away.
TEST(LostAgent, WhatItHasPublishedIsSyncedBeforeItIsReported) {
  AgentHere agent;
  const TempDir dir;
  const Training training(std::uint64_t{1} << 20);
  FaultyStorage storage(PosixStorage());
  std::vector<std::string> synced;
  storage.SetObserver([&](Operation operation, const std::string& what) {
    if (operation == Operation::kSyncDirectory) {
      synced.push_back(what);
    }
  });
  const auto save = [&](const std::string& name) {
    auto stager = MakeStager(
        {}, nullptr, std::make_shared<LosingExecutor>(agent.Connect(), /*before=*/false), storage);
    EXPECT_TRUE(IsOk(stager));
    return AsyncSave(training.state(), dir / name, {}, **stager, storage).done().get().status();
  };
  EXPECT_TRUE(IsOk(save("a")));
  EXPECT_EQ(synced, std::vector<std::string>{dir.path()}) << "the agent syncs by its own storage";
  storage.FailAt({.operation = Operation::kSyncDirectory,
                  .number = 1,
                  .forever = true,
                  .status = Unavailable("input/output error")});
  EXPECT_TRUE(FailsWith(save("b"), StatusCode::kUnavailable, {"the agent has died"}));
}

TEST(LostAgent, ThatHadNotPublishedFailsItsSave) {
  AgentHere agent;
  const TempDir dir;
  const Training training(std::uint64_t{20} << 20);
  EXPECT_TRUE(FailsWith(SaveAndLose(agent, training, dir / "c", /*before=*/true),
                        StatusCode::kUnavailable, {"the agent has died"}));
}

/// Hands every save over, and never hears of it.
class UnansweredExecutor final : public SaveExecutor {
 public:
  explicit UnansweredExecutor(std::shared_ptr<SaveExecutor> real) : real_(std::move(real)) {}

  Status Attach(int fd, std::uint64_t blocks) override { return real_->Attach(fd, blocks); }
  Status Submit(std::uint64_t ticket, const Submission& save, bool* sent) override {
    EXPECT_TRUE(IsOk(real_->Submit(ticket, save, sent)));
    *sent = true;
    return Unavailable("no answer");
  }
  void Pass(std::uint64_t ticket) override { real_->Pass(ticket); }
  Result<AsyncSaveReport> Wait(std::uint64_t ticket, bool* lost) override {
    return real_->Wait(ticket, lost);
  }
  bool Holds(std::uint64_t ticket) override { return real_->Holds(ticket); }
  void Cancel(std::uint64_t ticket) override { real_->Cancel(ticket); }
  void Forget(std::uint64_t ticket) override { real_->Forget(ticket); }

 private:
  const std::shared_ptr<SaveExecutor> real_;
};

// Seed 2427 of the simulator: both would speak for the rank in the ranks' exchange, and each take
// messages that are the other's.
TEST(LostAgent, ATrainerThatGotNoAnswerLeavesTheExchangeToTheAgent) {
  AgentHere agent;
  const TempDir dir;
  const Training training(std::uint64_t{9} << 20);
  auto front = MakeInProcessCoordinators(2);
  const auto done = test::OnEveryRank(front, [&](Coordinator& rank) -> Status {
    auto executor = agent.Connect();
    if (rank.rank() == 0) {
      executor = std::make_shared<UnansweredExecutor>(std::move(executor));
    }
    auto stager = Stager::Make({}, nullptr, std::move(executor));
    VARVE_RETURN_IF_ERROR(stager.status());
    AsyncSaveOptions slow;
    slow.save.max_write_bandwidth = std::uint64_t{8} << 20;  // Rank 0 withdraws meanwhile.
    const State state = training.state(std::to_string(rank.rank()));
    return AsyncSave(state, dir / "c", slow, **stager, rank).done().get().status();
  });
  EXPECT_TRUE(FailsWith(*done[0], StatusCode::kUnavailable, {"no answer"}));
  EXPECT_TRUE(FailsWith(*done[1], StatusCode::kUnavailable, {"rank 0", "no answer"}));
  EXPECT_TRUE(IsOk(DrainAgent(std::chrono::seconds(20),
                              agent.directory())));  // It waits for no message that was taken.
  EXPECT_FALSE(std::filesystem::exists(dir / "c"));
}

/// An agent that dies when it has accepted a save, before it does anything.
class DyingExecutor final : public SaveExecutor {
 public:
  Status Attach(int /*fd*/, std::uint64_t /*blocks*/) override { return Status::Ok(); }
  Status Submit(std::uint64_t /*ticket*/, const Submission& /*save*/, bool* sent) override {
    *sent = true;
    return Status::Ok();
  }
  void Pass(std::uint64_t /*ticket*/) override {}
  Result<AsyncSaveReport> Wait(std::uint64_t /*ticket*/, bool* lost) override {
    *lost = true;
    return Unavailable("the agent has died");
  }
  bool Holds(std::uint64_t /*ticket*/) override { return false; }
  void Cancel(std::uint64_t /*ticket*/) override {}
  void Forget(std::uint64_t /*ticket*/) override {}
};

TEST(LostAgent, TheOtherRanksLearnOfItsDeathFromItsTrainer) {
  AgentHere agent;
  const TempDir dir;
  const Training training(std::uint64_t{1} << 20);
  auto front = MakeInProcessCoordinators(2);
  const auto done = test::OnEveryRank(front, [&](Coordinator& rank) -> Status {
    auto stager = Stager::Make(
        {}, nullptr, rank.rank() == 0 ? agent.Connect() : std::make_shared<DyingExecutor>());
    VARVE_RETURN_IF_ERROR(stager.status());
    AsyncSaveOptions options;
    options.save.timeout = std::chrono::seconds(60);
    const State state = training.state(std::to_string(rank.rank()));
    return AsyncSave(state, dir / "c", options, **stager, rank).done().get().status();
  });
  EXPECT_TRUE(FailsWith(*done[0], StatusCode::kUnavailable, {"rank 1", "the agent has died"}));
}

/// An agent in a process of its own, which a test can stop (SIGSTOP) and continue.
class AgentBeside {
 public:
  AgentBeside() {
    const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    options_ = {directory(), here / "bin" / "varve-agent", std::chrono::seconds(3)};
  }
  AgentBeside(const AgentBeside&) = delete;
  AgentBeside& operator=(const AgentBeside&) = delete;
  ~AgentBeside() {
    GoOn();
    (void)StopAgent(std::chrono::seconds(60), directory());
  }

  [[nodiscard]] std::string directory() const { return home_ / "agent"; }
  std::unique_ptr<Stager> MakeStager(std::uint64_t budget) {
    auto agent = ConnectToAgent(options_);
    EXPECT_TRUE(IsOk(agent));
    const auto report = AgentStatus(directory());
    EXPECT_TRUE(IsOk(report));
    pid_ = report.ok() ? report->pid : 0;
    return std::move(*Stager::Make({.budget_bytes = budget}, nullptr, std::move(*agent)));
  }
  void StandStill() const { Signal(SIGSTOP); }
  void GoOn() const { Signal(SIGCONT); }

 private:
  void Signal(int signal) const {
    if (pid_ > 0) {
      ::kill(pid_, signal);
    }
  }
  TempDir home_;
  AgentOptions options_;
  int pid_ = 0;
};

std::uint64_t BytesFromMemory(Storage& storage, std::atomic<std::uint64_t>& count,
                              const std::string& path, const std::string& expected) {
  count = 0;
  EXPECT_TRUE(Load(path, expected.size(), "", storage) == expected);
  return count;
}

// A stopped agent answers no request: neither to give up memory that it keeps, nor to stop writing.
TEST(LostAgent, ThatStandsStillKeepsNoTrainerAndHurtsNoSaveWhenItGoesOn) {
  AgentBeside agent;
  const TempDir dir;
  const auto stager = agent.MakeStager(std::uint64_t{48} << 20);  // For two saves.
  Training training(std::uint64_t{20} << 20);
  const auto save = [&](const std::string& name, AsyncSaveOptions options = {}) {
    return AsyncSave(training.state(), dir / name, options, *stager);
  };
  const std::string first = training.memory;
  ASSERT_TRUE(IsOk(save("kept").done().get()));
  std::atomic<std::uint64_t> count = 0;  // By the threads of the load.
  const auto kept = OpenAgentMemory(
      dir / "kept", PosixStorage(), [&](std::uint64_t bytes) { count += bytes; },
      agent.directory());
  ASSERT_NE(kept, nullptr);
  EXPECT_GT(BytesFromMemory(*kept, count, dir / "kept", first), 0U);
  AsyncSaveOptions slow;
  slow.save.max_write_bandwidth = std::uint64_t{1} << 20;  // Twenty seconds.
  const AsyncSaveHandle writing = save("writing", slow);
  ASSERT_TRUE(IsOk(writing.staged().get()));
  agent.StandStill();
  training.Step();
  EXPECT_FALSE(save("next").done().get().ok());  // It took the kept save's memory, and the agent
                                                 // did not accept it.
  EXPECT_TRUE(FailsWith(writing.done().get(), StatusCode::kUnavailable));
  // Its connections are open, and it has revoked no page.
  EXPECT_EQ(BytesFromMemory(*kept, count, dir / "kept", first), 0U);
  training.Step();
  agent.GoOn();
  ASSERT_TRUE(IsOk(save("after").done().get()));
  ASSERT_TRUE(IsOk(DrainAgent(std::chrono::seconds(60), agent.directory())));
  EXPECT_TRUE(Load(dir / "after", training.memory.size()) == training.memory);
  EXPECT_FALSE(std::filesystem::exists(dir / "writing"));
}

}  // namespace
}  // namespace varve::lost_agent_test
