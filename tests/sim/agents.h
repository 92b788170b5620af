/// The agents of a simulation: the engine's own requests, sessions and executors, on connections
/// that the seed may break, in processes that it may kill or stop.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "agent/link.h"
#include "agent/requests.h"
#include "agent/shared_memory.h"
#include "sim/scheduler.h"
#include "sim/world.h"

namespace varve::sim {

/// The two ends of a connection. Nothing is lost on the way, but the connection may end at any
/// message, and when either process does.
class Pipe {
 public:
  explicit Pipe(const Surroundings& around) : scheduler_(*around.scheduler), plant_(around.plant) {}
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() = default;

  /// Returns one end. All ends that are made keep the pipe alive.
  static std::shared_ptr<AgentLink> End(const std::shared_ptr<Pipe>& pipe, bool of_agent);

  void Put(bool by_agent, const AgentMessage& message);
  [[nodiscard]] bool Has(bool for_agent) const;
  AgentMessage Take(bool for_agent);
  [[nodiscard]] bool closed() const { return closed_; }
  void Close() { closed_ = true; }
  /// Returns true where it has ended though both processes lived.
  [[nodiscard]] bool was_cut() const { return was_cut_; }
  /// Closes the pipe after so many messages.
  void CloseAfter(std::uint64_t messages) { messages_left_ = messages; }
  [[nodiscard]] Scheduler& scheduler() { return scheduler_; }

 private:
  void SpoilLease(AgentMessage* submit);
  void SpoilGroup(AgentMessage* submit);

  Scheduler& scheduler_;
  const Plant plant_;
  mutable std::mutex mutex_;  // Guards the inboxes: processes that were killed end all at once.
  std::atomic<bool> closed_ = false;
  bool was_cut_ = false;
  std::uint64_t messages_left_ = ~std::uint64_t{0};
  std::deque<AgentMessage> inbox_[2];
  std::vector<std::shared_ptr<ValidityPage>> pages_;  ///< Of the planted bug.
};

/// An agent. Its main actor does what agent/server.cc does with sockets.
class Agent {
 public:
  Agent(const Surroundings& around, const std::string& name, Fate fate,
        std::chrono::milliseconds peer_timeout);
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  ~Agent() = default;

  /// Takes the agent's end of a connection. `has_exited`: whether the trainer's process has.
  void Accept(std::shared_ptr<Pipe> pipe, std::function<bool()> has_exited);

  /// Lets the agent end once nothing is left to do.
  void MayEnd() { may_end_ = true; }
  [[nodiscard]] Process& process() { return process_; }
  [[nodiscard]] bool ended() const { return ended_ || process_.killed(); }

 private:
  struct PipePeer : Peer {
    std::shared_ptr<Pipe> pipe;
  };

  void Live();
  [[nodiscard]] bool HasWork();
  void Handle(PipePeer& peer);

  const AgentServerOptions options_;
  Process process_;
  bool woken_ = false;
  bool may_end_ = false;
  bool ended_ = false;
  std::unique_ptr<AgentRequests> requests_;
  std::list<PipePeer> peers_;
};

}  // namespace varve::sim
