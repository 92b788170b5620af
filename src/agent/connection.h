/// The socket between a trainer (or a command) and the agent of its node.
#pragma once

#include <mutex>
#include <string>
#include <utility>

#include "agent/link.h"
#include "base/file_descriptor.h"
#include "varve/coordinator.h"
#include "varve/status.h"

namespace varve {

/// A connected Unix socket (SOCK_SEQPACKET).
class AgentConnection final : public AgentLink {
 public:
  explicit AgentConnection(FileDescriptor socket) : socket_(std::move(socket)) {}

  Status Send(const AgentMessage& message) override;
  Result<AgentMessage> Receive(Deadline deadline) override;
  [[nodiscard]] bool IsOpen() const override;
  void Close() override;

  [[nodiscard]] int fd() const { return socket_.get(); }

 private:
  FileDescriptor socket_;
  std::mutex sending_;
};

/// Connects to the agent that listens at `socket_path`, which must run as the same user. Errors:
/// NotFound when no process listens; FailedPrecondition for another user's process.
Result<FileDescriptor> ConnectToSocket(const std::string& socket_path, Deadline deadline);

/// Checks the peer's user and returns its pid in `*pid`. Errors: FailedPrecondition when the peer
/// is neither of this user nor root.
Status CheckPeer(int socket, int* pid);

}  // namespace varve
