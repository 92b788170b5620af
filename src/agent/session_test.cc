#include "agent/session.h"

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "agent/held_files.h"
#include "agent/link.h"
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

/// The agent's end of a connection: keeps what the agent sends.
class Link final : public AgentLink {
 public:
  Status Send(const AgentMessage& message) override {
    sent_.emplace_back(message.verb, message.payload);
    return Status::Ok();
  }
  Result<AgentMessage> Receive(Deadline /*deadline*/) override { return Unavailable("nothing"); }
  [[nodiscard]] bool IsOpen() const override { return true; }
  void Close() override {}

  [[nodiscard]] const std::vector<std::pair<AgentVerb, Bytes>>& sent() const { return sent_; }

 private:
  std::vector<std::pair<AgentVerb, Bytes>> sent_;
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
  const auto link = std::make_shared<Link>();
  HeldFiles held(std::chrono::minutes(1));
  FaultyStorage storage(PosixStorage());
  std::promise<void> written;
  AgentSession session({.trainer = link,
                        .memory = std::move(*memory),
                        .held = held,
                        .storage = storage,
                        .peer_timeout = std::chrono::minutes(1),
                        .changed = [&] { written.set_value(); }});
  storage.SetObserver([&](Operation operation, const std::string& what) {
    if (operation == Operation::kRename && what.find(".varve-saving-") != std::string::npos) {
      published(session);
    }
  });
  EXPECT_TRUE(IsOk(session.Submit(0, std::move(*save), std::move(*lease))));
  written.get_future().wait();
  EXPECT_EQ(link->sent().size(), 1U);
  for (const auto& [verb, payload] : link->sent()) {
    EXPECT_EQ(verb, AgentVerb::kDone);
    EXPECT_EQ(payload.substr(0, 1), Bytes(1, '\0')) << payload;
  }
  std::vector<std::uint64_t> tickets;
  for (const Held& file : held.All()) {
    tickets.push_back(file.ticket);
  }
  return tickets;
}

TEST(AgentSession, HoldsWhatItHasWrittenForATrainerThatLives) {
  EXPECT_EQ(HeldAfter([](AgentSession&) {}), std::vector<std::uint64_t>{0});
}

TEST(AgentSession, HoldsNoMemoryThatTheTrainerHasComeBackToWhileItWasWritten) {
  EXPECT_TRUE(HeldAfter([](AgentSession& session) { session.Abandon(); }).empty());
}

}  // namespace
}  // namespace varve::session_test
