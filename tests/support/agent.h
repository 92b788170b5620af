/// An agent for tests.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "varve/agent.h"
#include "varve/async_save.h"

namespace varve::test {

/// An agent in a thread of this process; tests of killed processes are in python/tests.
class AgentHere {
 public:
  explicit AgentHere(std::chrono::milliseconds idle = std::chrono::seconds(60),
                     std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    options_.directory = home_ / "agent";
    options_.idle = idle;
    options_.peer_timeout = timeout;
    options_.listening = [this] { return listens_ = true; };
    Start();
  }
  AgentHere(const AgentHere&) = delete;
  AgentHere& operator=(const AgentHere&) = delete;
  ~AgentHere() { (void)StopAgent(std::chrono::seconds(60), directory()); }

  [[nodiscard]] const std::string& directory() const { return options_.directory; }

  std::shared_ptr<SaveExecutor> Connect() {
    auto agent = ConnectToAgent({directory(), "/no/such/program"});
    EXPECT_TRUE(IsOk(agent));
    return agent.ok() ? *agent : nullptr;
  }

  std::unique_ptr<Stager> MakeStager(std::uint64_t budget = std::uint64_t{128} << 20) {
    auto stager = Stager::Make({.budget_bytes = budget}, nullptr, Connect());
    EXPECT_TRUE(IsOk(stager));
    return std::move(*stager);
  }

  /// Ends the agent and starts another.
  void Restart() {
    EXPECT_TRUE(IsOk(StopAgent(std::chrono::seconds(60), directory())));
    thread_.join();
    Start();
  }

  /// Waits until the agent has ended.
  Status End() {
    thread_.join();
    return ended_;
  }

 private:
  void Start() {
    listens_ = false;
    thread_ = std::jthread([this] { ended_ = RunAgent(options_); });
    while (!listens_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  TempDir home_;
  AgentServerOptions options_;
  std::atomic<bool> listens_{false};
  Status ended_;
  std::jthread thread_;
};

}  // namespace varve::test
