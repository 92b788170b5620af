// The end of saves whose trainer dies. Here the trainer only closes its connection, which is all
// that the agent sees of a death.

#include <array>
#include <filesystem>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "agent/client.h"
#include "agent/connection.h"
#include "agent/shared_memory.h"
#include "async/submission.h"
#include "pipeline/staged_file.h"
#include "pipeline/staging_pool.h"
#include "save/session.h"
#include "support/agent.h"
#include "support/random.h"
#include "support/ranks.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "support/trainer.h"
#include "support/training.h"
#include "varve/agent.h"
#include "varve/async_save.h"
#include "varve/catalogue.h"

namespace varve::orphan_test {
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

TEST(OrphanedSave, IsWrittenWhenTicketsBeforeItWereNeverSubmitted) {
  AgentHere agent;
  const TempDir dir;
  const Training training(20 * kMiB);
  {
    Trainer trainer(agent);
    ASSERT_TRUE(IsOk(trainer.Submit(3, training.state(), dir / "3")));
    ASSERT_TRUE(IsOk(trainer.Submit(5, training.state(), dir / "5")));
    EXPECT_FALSE(std::filesystem::exists(dir / "3"));  // Ticket 0 has not been submitted.
  }
  ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
  EXPECT_TRUE(Load(dir / "3", training.memory.size()) == training.memory);
  EXPECT_TRUE(Load(dir / "5", training.memory.size()) == training.memory);
}

TEST(OrphanedSave, StaysInMemoryUntilTheSameRankHasSavedAgain) {
  AgentHere agent;
  const TempDir dir;
  const Training training(20 * kMiB);
  {
    Trainer trainer(agent);
    ASSERT_TRUE(IsOk(trainer.Submit(0, training.state(), dir / "1")));
  }
  ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
  const auto memory = OpenAgentMemory(dir / "1", PosixStorage(), {}, agent.directory());
  ASSERT_NE(memory, nullptr);
  EXPECT_TRUE(Load(dir / "1", training.memory.size(), "", *memory) == training.memory);
  const auto stager = agent.MakeStager();
  ASSERT_TRUE(IsOk(AsyncSave(training.state(), dir / "2", {}, *stager).done().get()));
  EXPECT_EQ(OpenAgentMemory(dir / "1", PosixStorage(), {}, agent.directory()), nullptr);
}

TEST(OrphanedSave, OfLongAgoIsGivenUpWhenOthersSave) {
  AgentHere agent(4s);
  const auto stager = agent.MakeStager();  // While it is connected the agent does not end.
  const TempDir dir;
  const Training training(9 * kMiB);
  for (const char* const job : {"a/1", "b/1"}) {
    {
      Trainer trainer(agent);
      ASSERT_TRUE(IsOk(trainer.Submit(0, training.state(), dir / job)));
    }
    ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
  }
  EXPECT_EQ(AgentStatus(agent.directory())->held.size(), 2U);
  std::this_thread::sleep_for(4100ms);
  ASSERT_TRUE(IsOk(AsyncSave(training.state(), dir / "c/1", {}, *stager).done().get()));
  const auto report = AgentStatus(agent.directory());
  ASSERT_TRUE(IsOk(report));
  ASSERT_EQ(report->held.size(), 1U);
  EXPECT_EQ(report->held[0].path, dir / "c/1");
}

TEST(OrphanedSave, OfSeveralRanksIsCompletedByTheAgentsAlone) {
  AgentHere agent;
  const TempDir dir;
  const Training training(9 * kMiB);
  auto planning = MakeInProcessCoordinators(2);
  const auto handed = test::OnEveryRank(planning, [&](Coordinator& rank) {
    Trainer trainer(agent);
    return trainer.Submit(0, training.state(std::to_string(rank.rank())), dir / "c", rank);
  });
  ASSERT_TRUE(IsOk(*handed[0]));
  ASSERT_TRUE(IsOk(*handed[1]));
  ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
  EXPECT_TRUE(Load(dir / "c", training.memory.size(), "0") == training.memory);
  EXPECT_TRUE(Load(dir / "c", training.memory.size(), "1") == training.memory);
}

TEST(OrphanedSave, IsGivenUpWhenAnotherRankNeverHandsItsPartOver) {
  AgentHere agent(60s, /*timeout=*/100ms);
  const TempDir dir;
  const Training training(9 * kMiB);
  auto planning = MakeInProcessCoordinators(2);
  const auto handed = test::OnEveryRank(planning, [&](Coordinator& rank) {
    Trainer trainer(agent);
    const State state = training.state(std::to_string(rank.rank()));
    if (rank.rank() == 0) {
      return trainer.Submit(0, state, dir / "c", rank);
    }
    const SaveOptions options;
    const std::string path = dir / "c";
    return MakeSaveSession(state, path, options, Claim::kApart, PosixStorage())
        ->Plan(rank, Status::Ok());
  });
  ASSERT_TRUE(IsOk(*handed[0]));
  ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
  EXPECT_FALSE(std::filesystem::exists(dir / "c"));
  const auto found = ListCheckpoints(dir.path());
  ASSERT_TRUE(IsOk(found));
  ASSERT_EQ(found->size(), 1U);
  EXPECT_EQ((*found)[0].state, CheckpointState::kFailed);
  EXPECT_NE((*found)[0].detail.find("rank 1"), std::string::npos) << (*found)[0].detail;
}

TEST(Executor, KeepsItsMemoryWhenTheAgentDropsItsConnection) {
  AgentHere agent;
  Training training(3 * kMiB);
  Trainer trainer(agent);
  const auto connection = trainer.ConnectAgain(agent);
  ASSERT_NE(connection, nullptr);
  ASSERT_EQ(::pwrite(trainer.pool().fd(), "mine", 4, 0), 4);
  ASSERT_TRUE(IsOk(connection->Send({AgentVerb::kHeld, 0, {}, {}})));  // Only an agent may send
                                                                       // kHeld.
  EXPECT_TRUE(FailsWith(connection->Receive(test::LongDeadline()), StatusCode::kUnavailable));
  std::this_thread::sleep_for(100ms);
  std::string now(4, '\0');
  ASSERT_EQ(::pread(trainer.pool().fd(), now.data(), 4, 0), 4);
  EXPECT_EQ(now, "mine");
}

TEST(Executor, KeepsItsMemoryWhenConnectionEndsButProcessLives) {
  AgentHere agent(60s, /*timeout=*/200ms);
  Trainer trainer(agent);
  auto connection = trainer.ConnectAgain(agent);
  ASSERT_NE(connection, nullptr);
  ASSERT_EQ(::pwrite(trainer.pool().fd(), "mine", 4, 0), 4);
  connection.reset();
  ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));  // Ends once the agent has given the save
                                                          // up.
  std::string now(4, '\0');
  ASSERT_EQ(::pread(trainer.pool().fd(), now.data(), 4, 0), 4);
  EXPECT_EQ(now, "mine");
}

TEST(Executor, ThatComesBackWithItsMemoryIsNotTakenForTwoTrainers) {
  AgentHere agent(60s, /*timeout=*/20s);
  Trainer trainer(agent);
  ASSERT_NE(trainer.ConnectAgain(agent), nullptr);  // That save is lost.
  const auto again = agent.Connect();
  ASSERT_TRUE(IsOk(again->Attach(trainer.pool().fd(), trainer.pool().block_count())));
  // Does not wait for the lost trainer: the agent knows that this one is the same.
  ASSERT_TRUE(IsOk(DrainAgent(10s, agent.directory())));
}

TEST(Executor, TellsANewAgentWhichTicketsWillNotCome) {
  AgentHere agent;
  const TempDir dir;
  const Training training(9 * kMiB);
  Trainer trainer(agent);
  trainer.executor().Pass(1);  // A later save may be staged, or fail, before an earlier one.
  agent.Restart();
  ASSERT_TRUE(IsOk(trainer.Submit(0, training.state(), dir / "0")));
  ASSERT_TRUE(IsOk(trainer.Submit(2, training.state(), dir / "2")));
  EXPECT_TRUE(IsOk(DrainAgent(10s, agent.directory())));
  EXPECT_TRUE(Load(dir / "2", training.memory.size()) == training.memory);
}

TEST(Executor, SaysNothingThatHurtsTheAgentHoweverGarbled) {
  AgentHere agent(60s, /*timeout=*/100ms);
  const TempDir dir;
  const Training training(3 * kMiB);
  Trainer trainer(agent);
  const std::string path = dir / "c";
  const auto save = trainer.Describe(training.state(), path, *MakeSingleProcessCoordinator());
  ASSERT_TRUE(IsOk(save));
  const Bytes encoded = EncodeSubmission(*save);
  const auto connection = trainer.ConnectAgain(agent);
  ASSERT_NE(connection, nullptr);
  const auto lease = ValidityPage::Make();
  ASSERT_TRUE(IsOk(lease));
  test::Random random(11);
  std::uint64_t ticket = 0;
  for (int round = 0; round < 300; ++round) {
    Bytes bytes = encoded;
    const std::size_t begin =
        path.size() + 1;  // The path stays whole: nothing is written elsewhere.
    for (std::uint64_t n = 1 + random.Below(3); n > 0; --n) {
      // The last byte asks for a deferred save, whose end is not answered while its trainer lives.
      const std::size_t size = random.Below(2) == 0 ? 120 : bytes.size() - begin - 1;
      const std::array<std::uint64_t, 3> values{0, 0xff, random.Below(256)};
      bytes[begin + random.Below(size)] = static_cast<char>(values[random.Below(values.size())]);
    }
    AgentMessage message{AgentVerb::kSubmit, ticket, {}, {}};
    message.fds.push_back(std::move(*MakeBlob(bytes)));
    message.fds.emplace_back(::dup((*lease)->fd().get()));
    ASSERT_TRUE(IsOk(connection->Send(message)));
    ASSERT_TRUE(IsOk(connection->Send({AgentVerb::kCancel, ticket, {}, {}})));
    std::set<AgentVerb> heard;  // Done may come before Ok.
    while (!heard.contains(AgentVerb::kRefused) && heard.size() < 2) {
      const auto answer = connection->Receive(test::LongDeadline());
      ASSERT_TRUE(IsOk(answer));
      heard.insert(answer->verb);
    }
    ticket += heard.size() - 1;
  }
  EXPECT_GT(ticket, 50U);
  EXPECT_TRUE(IsOk(AgentStatus(agent.directory())));
}

TEST(Executor, ServesOneStager) {
  AgentHere agent;
  const TempDir dir;
  const Training training(9 * kMiB);
  const auto executor = agent.Connect();
  const auto stager = Stager::Make({.budget_bytes = 64 * kMiB}, nullptr, executor);
  ASSERT_TRUE(IsOk(stager));
  EXPECT_TRUE(FailsWith(Stager::Make({.budget_bytes = 64 * kMiB}, nullptr, executor),
                        StatusCode::kInvalidArgument, {"one stager"}));
  EXPECT_TRUE(IsOk(AsyncSave(training.state(), dir / "c", {}, **stager).done().get()));
}

TEST(OrphanedSave, ThatWasCancelledLeavesNothing) {
  AgentHere agent;
  const TempDir dir;
  const Training training(20 * kMiB);
  Trainer trainer(agent);
  ASSERT_TRUE(IsOk(trainer.Submit(1, training.state(), dir / "c")));
  EXPECT_TRUE(FailsWith(trainer.Submit(1, training.state(), dir / "c"),
                        StatusCode::kFailedPrecondition, {"ticket 1"}));
  trainer.executor().Cancel(1);
  trainer.executor().Pass(0);
  bool lost = false;
  EXPECT_TRUE(FailsWith(trainer.executor().Wait(1, &lost), StatusCode::kCancelled));
  EXPECT_FALSE(lost);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

}  // namespace
}  // namespace varve::orphan_test
