/// The requests of connected processes, and the agent's answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/held_files.h"
#include "agent/link.h"
#include "agent/session.h"
#include "varve/agent.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// A connected process: a trainer once it has attached its memory, a command otherwise.
struct Peer {
  std::shared_ptr<AgentLink> connection;
  int pid = 0;                       // 0 where it is not known.
  std::function<bool()> has_exited;  // Its process; none where that cannot be seen.
  bool greeted = false;
  bool ended = false;
  bool dropped = false;            // Its process may live, and use its memory.
  bool said_bye = false;           // It does not use its memory any more.
  bool silent = false;             // Its connection has ended, and its process has not.
  std::optional<AgentVerb> waits;  // kDrain or kStop: answered at the end of all saves.
  std::shared_ptr<AgentSession> session;
};

/// Returns the message that tells a peer why this agent closes the connection.
AgentMessage RefusalOfAgent(const Status& reason);

/// Threads: the agent's main thread only. No member function blocks for long.
class AgentRequests {
 public:
  /// Saves are written to `storage`. Other threads call `wake` when one has ended; both must
  /// outlive the sessions' threads.
  AgentRequests(const AgentServerOptions& options, Storage& storage, std::function<void()> wake)
      : options_(options), storage_(storage), wake_(std::move(wake)), held_(options.idle) {}

  /// Does what a message asks for, and answers it. Drops a peer whose message is malformed.
  void Handle(Peer& peer, AgentMessage message);

  /// Stops receiving from the peer: sets `ended` or `silent`.
  void Drop(Peer& peer) const;
  /// Does the same for a peer that the agent cannot serve, and sends it the reason.
  void DropFor(Peer& peer, const Status& reason) const;
  /// Ends the session of a peer that has ended: decides about its saves and its memory.
  void EndOf(Peer& peer);
  /// Removes the sessions that are over.
  void RemoveEnded();

  /// Returns the number of saves that are not yet written.
  [[nodiscard]] std::size_t pending() const;
  /// Returns true after a kStop: the agent ends once all saves are written.
  [[nodiscard]] bool stopping() const { return stopping_; }
  /// Gives up all held files: a trainer that lives uses its memory again once it has lost the
  /// agent.
  void End() { held_.ForgetAll(); }

 private:
  void Reply(Peer& peer, std::uint64_t ticket, const Status& status) const;
  void Greet(Peer& peer, const AgentMessage& message) const;
  Status Attach(Peer& peer, AgentMessage message);
  [[nodiscard]] Status TakeSave(const Peer& peer, AgentMessage message) const;
  void SendHeld(Peer& peer, const std::string& path);
  AgentReport Report();
  void SendStatus(Peer& peer);

  const AgentServerOptions& options_;
  Storage& storage_;
  const std::function<void()> wake_;
  bool stopping_ = false;
  std::uint64_t next_session_ = 1;
  HeldFiles held_;
  std::vector<std::shared_ptr<AgentSession>> sessions_;  // Also those whose trainers have exited.
};

}  // namespace varve
