#include "agent/session.h"

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "agent/shared_memory.h"
#include "storages/faulty.h"
#include "support/agent.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "support/trainer.h"
#include "support/training.h"

namespace varve::session_test {
namespace {

using test::IsOk;
using test::TempDir;
using test::Training;

/// A host whose work waits until a test does it.
class Host final : public SessionHost {
 public:
  explicit Host(std::shared_ptr<PoolMemory> memory) : memory_(std::move(memory)) {}

  void Run(Lane /*lane*/, std::function<void()> work) override { work_.push_back(std::move(work)); }
  std::vector<const std::byte*> BlocksAt(const std::vector<std::uint64_t>& numbers) override {
    return memory_->At(numbers);
  }
  std::uint64_t blocks() override { return memory_->blocks(); }
  void Hold(std::uint64_t ticket, const Submission& /*save*/, const SubmittedFile& /*file*/,
            std::shared_ptr<ValidityPage> /*lease*/, bool /*orphan*/) override {
    held_.push_back(ticket);
  }
  void ForgetHeld() override { held_.clear(); }
  void OrphanHeld() override {}
  void Release(std::vector<bool> /*wanted*/) override {}
  void Report(std::uint64_t /*ticket*/, const Result<AsyncSaveReport>& report) override {
    reports_.push_back(report);
  }

  void DoWork() {
    while (!work_.empty()) {
      const auto work = std::move(work_.front());
      work_.pop_front();
      work();
    }
  }
  [[nodiscard]] const std::vector<std::uint64_t>& held() const { return held_; }
  [[nodiscard]] const std::vector<Result<AsyncSaveReport>>& reports() const { return reports_; }

 private:
  const std::shared_ptr<PoolMemory> memory_;
  std::deque<std::function<void()>> work_;
  std::vector<std::uint64_t> held_;
  std::vector<Result<AsyncSaveReport>> reports_;
};

/// Submits a save, lets it be written, and returns the tickets that are held then. Calls
/// `published` when the save is about to become visible.
std::vector<std::uint64_t> HeldAfter(const std::function<void(AgentSession&)>& published) {
  test::AgentHere agent;
  test::Trainer trainer(agent);
  const TempDir dir;
  const Training training(std::uint64_t{3} << 20);
  auto save = trainer.Describe(training.state(), dir / "c", *MakeSingleProcessCoordinator());
  auto memory =
      PoolMemory::Map(FileDescriptor(::dup(trainer.pool().fd())), trainer.pool().block_count());
  auto lease = ValidityPage::Make();
  if (!save.ok() || !memory.ok() || !lease.ok()) {
    ADD_FAILURE() << "no save to submit";
    return {};
  }
  FaultyStorage storage(PosixStorage());
  Host host(std::move(*memory));
  AgentSession session(host, storage, std::chrono::minutes(1), 0);
  storage.SetObserver([&](Operation operation, const std::string& what) {
    if (operation == Operation::kRename && what.find(".varve-saving-") != std::string::npos) {
      published(session);
    }
  });
  EXPECT_TRUE(IsOk(session.Submit(0, std::move(*save), std::move(*lease))));
  host.DoWork();
  EXPECT_EQ(host.reports().size(), 1U);
  EXPECT_TRUE(!host.reports().empty() && IsOk(host.reports()[0]));
  return host.held();
}

TEST(AgentSession, HoldsWhatItHasWrittenForATrainerThatLives) {
  EXPECT_EQ(HeldAfter([](AgentSession&) {}), std::vector<std::uint64_t>{0});
}

TEST(AgentSession, HoldsNoMemoryThatTheTrainerHasComeBackToWhileItWasWritten) {
  EXPECT_TRUE(HeldAfter([](AgentSession& session) { session.Abandon(); }).empty());
}

}  // namespace
}  // namespace varve::session_test
