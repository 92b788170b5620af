/// What those who are connected ask of the agent, and what it answers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/connection.h"
#include "agent/held_files.h"
#include "agent/session.h"
#include "base/file_descriptor.h"
#include "varve/agent.h"
#include "varve/status.h"

namespace varve {

/// Somebody who is connected: a trainer once it has attached its memory, a command otherwise.
struct Peer {
  std::shared_ptr<AgentConnection> connection;
  FileDescriptor process;  // A pidfd; none where the peer's process cannot be seen.
  bool greeted = false;
  bool gone = false;
  bool dropped = false;   // Its process may live, and use its memory.
  bool said_bye = false;  // It does not use its memory any more.
  /// Its connection has ended, its process has not, as far as we see: until then that may come.
  std::optional<std::chrono::steady_clock::time_point> silent_until;
  std::optional<AgentVerb> waits;  // kDrain or kStop, for the end of all saves.
  std::shared_ptr<AgentSession> session;
};

/// All of it on the agent's one thread; nothing here lasts.
class AgentRequests {
 public:
  /// `wake` is called from other threads when a save has ended; must outlive the sessions' threads.
  AgentRequests(const AgentServerOptions& options, std::function<void()> wake)
      : options_(options), wake_(std::move(wake)), held_(options.idle) {}

  /// Does what a message asks for, and answers. A peer that is not understood is dropped.
  void Handle(Peer& peer, AgentMessage message);

  /// It is not to be listened to any more: `gone` is set, or `silent_until`.
  void Drop(Peer& peer) const;
  /// What becomes of the saves and the memory of a peer that is gone.
  void EndOf(Peer& peer);
  /// Lets go of sessions in which nothing is left to do.
  void RemoveEnded();

  /// Saves that are not yet written.
  [[nodiscard]] std::size_t pending() const;
  /// True when somebody has told the agent to end once everything is written.
  [[nodiscard]] bool stopping() const { return stopping_; }
  /// Nothing is held any more: trainers that live use their memory again once they see us gone.
  void End() { held_.ForgetAll(); }

 private:
  void Reply(Peer& peer, std::uint64_t turn, const Status& status) const;
  void Greet(Peer& peer, const AgentMessage& message) const;
  Status Attach(Peer& peer, AgentMessage message);
  [[nodiscard]] Status TakeSave(const Peer& peer, AgentMessage message) const;
  void SendHeld(Peer& peer, const std::string& path);
  AgentReport Report();
  void SendStatus(Peer& peer);

  const AgentServerOptions& options_;
  const std::function<void()> wake_;
  bool stopping_ = false;
  std::uint64_t next_session_ = 1;
  HeldFiles held_;
  std::vector<std::shared_ptr<AgentSession>> sessions_;  // With those whose trainers are gone.
};

}  // namespace varve
