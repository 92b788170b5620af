// A trainer's side of the agent, and an agent that does not accept what it is sent.

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "agent/client.h"
#include "agent/link.h"
#include "agent/shared_memory.h"
#include "support/status_matchers.h"

namespace varve::executor_test {
namespace {

using test::FailsWith;
using test::IsOk;

/// An agent that attaches memory, keeps the lease of each save, and refuses it or says nothing.
class UnwillingAgent final : public AgentLink {
 public:
  explicit UnwillingAgent(bool refuses) : refuses_(refuses) {}

  Status Send(const AgentMessage& message) override {
    const std::scoped_lock lock(mutex_);
    if (message.verb == AgentVerb::kAttach) {
      answers_.push_back({AgentVerb::kOk, message.ticket, {}, {}});
    }
    if (message.verb == AgentVerb::kSubmit) {
      auto lease = Duplicate(message.fds.at(1).get());
      EXPECT_TRUE(IsOk(lease));
      lease_ = *ValidityPage::Map(*std::move(lease));
      if (refuses_) {
        answers_.push_back({AgentVerb::kRefused,
                            message.ticket,
                            EncodeRefusal(FailedPrecondition("no room")),
                            {}});
      }
    }
    changed_.notify_all();
    return Status::Ok();
  }
  Result<AgentMessage> Receive(Deadline /*deadline*/) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !answers_.empty() || closed_; });
    if (answers_.empty()) {
      return Unavailable("the agent has closed the connection");
    }
    AgentMessage answer = std::move(answers_.front());
    answers_.pop_front();
    return answer;
  }
  [[nodiscard]] bool IsOpen() const override { return true; }
  void Close() override {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  [[nodiscard]] const ValidityPage* lease() const { return lease_.get(); }

 private:
  const bool refuses_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<AgentMessage> answers_;
  std::shared_ptr<ValidityPage> lease_;
  bool closed_ = false;
};

/// The trainer uses the memory of such a save again at once. An agent that has not answered may
/// still write the save, and has to see that.
TEST(AgentExecutor, RevokesTheLeaseOfASaveThatTheAgentDoesNotAccept) {
  for (const bool refuses : {true, false}) {
    const auto agent = std::make_shared<UnwillingAgent>(refuses);
    const auto executor = MakeAgentExecutor(
        refuses ? std::chrono::milliseconds(60'000) : std::chrono::milliseconds(20),
        [&] { return Result<std::shared_ptr<AgentLink>>(Unavailable("none runs")); }, agent);
    const auto memory = MakeBlob("memory");
    ASSERT_TRUE(IsOk(memory));
    ASSERT_TRUE(IsOk(executor->Attach(memory->get(), 1)));
    Submission save;
    save.path = "/runs/step-1";
    save.settled.plans.resize(1);
    save.settled.settled.ranks.resize(1);
    bool sent = false;
    EXPECT_TRUE(FailsWith(executor->Submit(0, save, &sent),
                          refuses ? StatusCode::kFailedPrecondition : StatusCode::kUnavailable,
                          {refuses ? "no room" : "has not answered for 20 ms"}));
    EXPECT_EQ(sent, !refuses);
    ASSERT_NE(agent->lease(), nullptr);
    EXPECT_FALSE(agent->lease()->Valid());
  }
}

}  // namespace
}  // namespace varve::executor_test
