// What a trainer makes of an agent that it has lost. The agent lives; what is lost is its word.

#include <gtest/gtest.h>

#include "checkpoint/handover.h"
#include "support/agent.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "support/training.h"
#include "varve/agent.h"
#include "varve/async_save.h"

namespace varve {
namespace {

using test::AgentHere;
using test::FailsWith;
using test::IsOk;
using test::Load;
using test::TempDir;
using test::Training;

/// Loses the agent just before, or just after, it has written what it was given.
class LosingExecutor final : public SaveExecutor {
 public:
  LosingExecutor(std::shared_ptr<SaveExecutor> real, bool before)
      : real_(std::move(real)), before_(before) {}

  Status Attach(int fd, std::uint64_t blocks) override { return real_->Attach(fd, blocks); }
  Status HandOver(std::uint64_t turn, const Handover& save) override {
    Handover slow = save;
    slow.options.max_write_bandwidth = before_ ? 1 : 0;
    return real_->HandOver(turn, slow);
  }
  void Pass(std::uint64_t turn) override { real_->Pass(turn); }
  Result<SaveReport> Wait(std::uint64_t turn, bool* lost) override {
    if (before_) {
      real_->Cancel(turn);
    }
    (void)real_->Wait(turn, lost);
    *lost = true;
    return Unavailable("the agent has died");
  }
  bool Holds(std::uint64_t turn) override { return real_->Holds(turn); }
  void Cancel(std::uint64_t turn) override { real_->Cancel(turn); }
  void Forget(std::uint64_t turn) override { real_->Forget(turn); }

 private:
  const std::shared_ptr<SaveExecutor> real_;
  const bool before_;
};

Result<SaveReport> SaveAndLose(AgentHere& agent, const Training& training, const std::string& path,
                               bool before) {
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

TEST(LostAgent, ThatHadNotPublishedFailsItsSave) {
  AgentHere agent;
  const TempDir dir;
  const Training training(std::uint64_t{20} << 20);
  EXPECT_TRUE(FailsWith(SaveAndLose(agent, training, dir / "c", /*before=*/true),
                        StatusCode::kUnavailable, {"the agent has died"}));
}

}  // namespace
}  // namespace varve
