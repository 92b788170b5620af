/// A trainer's side of the agent, and that of commands.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "agent/connection.h"
#include "async/submission.h"
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

/// Connects to an agent, which may have to be started, and greets it.
using ReachAgent = std::function<Result<std::shared_ptr<AgentLink>>()>;

/// Returns an executor on `agent`, a connection that has been greeted. It connects again by `reach`
/// where the connection is lost. An agent that does not answer for `answer_timeout` counts as lost.
std::shared_ptr<SaveExecutor> MakeAgentExecutor(std::chrono::milliseconds answer_timeout,
                                                ReachAgent reach, std::shared_ptr<AgentLink> agent);

}  // namespace varve
