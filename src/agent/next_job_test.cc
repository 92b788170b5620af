// A job has ended, its agent still writes, and the next job saves under the same name.

#include <chrono>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "catalogue/scan.h"
#include "publish/claim.h"
#include "support/agent.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "support/trainer.h"
#include "support/training.h"
#include "varve/agent.h"
#include "varve/checkpoint.h"

namespace varve::next_job_test {
namespace {

using namespace std::chrono_literals;
using test::AgentHere;
using test::IsOk;
using test::Load;
using test::TempDir;
using test::Trainer;
using test::Training;

constexpr std::uint64_t kBytes = std::uint64_t{3} << 20;

/// A trainer that has submitted a save, which is not written before the trainer ends: no save was
/// submitted for the ticket before.
class Ending {
 public:
  Ending(AgentHere& agent, const Training& training, const std::string& path) : trainer_(agent) {
    auto save = trainer_.Describe(training.state(), path, *MakeSingleProcessCoordinator());
    EXPECT_TRUE(IsOk(save));
    save->options.save.overwrite = Overwrite::kAlways;
    save->replaces = {*OccupantOf(PosixStorage(), path)};
    bool sent = false;
    EXPECT_TRUE(IsOk(trainer_.executor().Submit(1, *save, &sent)));
  }

 private:
  Trainer trainer_;
};

TEST(NextJob, WhatItHasSavedSinceIsNotReplaced) {
  AgentHere agent;
  const TempDir dir;
  const Training old(kBytes, 1);
  const Training newer(kBytes, 2);
  {
    const Ending trainer(agent, old, dir / "c");
    ASSERT_TRUE(IsOk(Save(newer.state(), dir / "c")));
  }
  ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
  EXPECT_TRUE(Load(dir / "c", kBytes) == newer.memory);
}

TEST(NextJob, WhatWasThereBeforeIsReplaced) {
  AgentHere agent;
  const TempDir dir;
  const Training older(kBytes, 1);
  const Training training(kBytes, 2);
  ASSERT_TRUE(IsOk(Save(older.state(), dir / "c")));
  {
    const Ending trainer(agent, training, dir / "c");
  }
  ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
  EXPECT_TRUE(Load(dir / "c", kBytes) == training.memory);
}

TEST(NextJob, WhatTheTrainerKnewIsReplacedThoughTheClockSaysThatItIsNewer) {
  AgentHere agent;
  const TempDir dir;
  const Training older(kBytes, 1);
  const Training training(kBytes, 2);
  {
    Trainer trainer(agent);
    auto save = trainer.Describe(training.state(), dir / "c", *MakeSingleProcessCoordinator());
    ASSERT_TRUE(IsOk(save));
    ASSERT_TRUE(IsOk(Save(older.state(), dir / "c")));  // The clock goes back after it.
    save->options.save.overwrite = Overwrite::kAlways;
    save->replaces = {*OccupantOf(PosixStorage(), dir / "c")};
    bool sent = false;
    ASSERT_TRUE(IsOk(trainer.executor().Submit(1, *save, &sent)));
  }
  ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
  EXPECT_TRUE(Load(dir / "c", kBytes) == training.memory);
}

TEST(NextJob, ASaveOfItThatIsUnderWayIsWaitedFor) {
  AgentHere agent;
  const TempDir dir;
  const Training training(kBytes);
  auto lock = LockName(PosixStorage(), dir / "c");
  ASSERT_TRUE(IsOk(lock));
  {
    const Ending trainer(agent, training, dir / "c");
  }
  std::this_thread::sleep_for(700ms);
  lock->reset();
  ASSERT_TRUE(IsOk(DrainAgent(60s, agent.directory())));
  EXPECT_TRUE(Load(dir / "c", kBytes) == training.memory);
}

}  // namespace
}  // namespace varve::next_job_test
