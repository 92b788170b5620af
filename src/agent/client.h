/// The other end of an agent's socket.
#pragma once

#include <memory>
#include <string>

#include "agent/connection.h"
#include "varve/agent.h"

namespace varve {

/// Connects to the agent of `directory` and greets it. Errors: NotFound when none runs;
/// FailedPrecondition when it is of another version, or the directory is open to others.
Result<std::shared_ptr<AgentConnection>> ConnectAndGreet(const std::string& directory,
                                                         Deadline deadline);

/// Does the same; starts an agent if none runs.
Result<std::shared_ptr<AgentConnection>> ConnectOrStart(const AgentOptions& options);

/// Sends one message and waits for the answer, which must be kOk. Errors: the refusal; Unavailable.
Result<AgentMessage> Ask(AgentLink& agent, const AgentMessage& question, Deadline deadline);

}  // namespace varve
