/// A trainer's side of the agent, on connections of any kind.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "agent/link.h"
#include "async/submission.h"
#include "varve/status.h"

namespace varve {

/// Connects to an agent, which may have to be started, and greets it.
using ReachAgent = std::function<Result<std::shared_ptr<AgentLink>>()>;

/// Returns an executor on `agent`, a connection that has been greeted. It connects again by `reach`
/// where the connection is lost. An agent that does not answer for `answer_timeout` counts as lost.
std::shared_ptr<SaveExecutor> MakeAgentExecutor(std::chrono::milliseconds answer_timeout,
                                                ReachAgent reach, std::shared_ptr<AgentLink> agent);

}  // namespace varve
