/// Where an agent listens, and that it is private.
#pragma once

#include <string>

#include "base/file_descriptor.h"
#include "varve/status.h"

namespace varve {

struct AgentEndpoint {
  std::string directory;
  std::string socket;  ///< Its messages.
  std::string lock;    ///< Held by the agent as long as it lives.
  std::string log;     ///< What it has to say.
};

/// The names; `directory` may be empty.
AgentEndpoint EndpointIn(const std::string& directory);

/// Makes the directory if needed. Errors: FailedPrecondition when it is not ours alone: whoever may
/// write to it could take the agent's place, and be given the memory of the training.
Status CheckPrivate(const std::string& directory, bool make);

/// The agent's lock. Errors: AlreadyExists while another process holds it.
Result<FileDescriptor> LockEndpoint(const AgentEndpoint& endpoint);

/// A socket that listens. The lock must be held: a socket that is there is a dead agent's.
Result<FileDescriptor> Listen(const AgentEndpoint& endpoint);

}  // namespace varve
