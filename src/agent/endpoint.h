/// The directory in which an agent listens, and the check that it is private.
#pragma once

#include <string>

#include "base/file_descriptor.h"
#include "varve/status.h"

namespace varve {

struct AgentEndpoint {
  std::string directory;
  std::string socket;  ///< The path of the socket.
  std::string lock;    ///< Held by the agent as long as it lives.
  std::string log;     ///< The path of the agent's log.
};

/// Returns the paths in `directory`; an empty one means the default directory.
AgentEndpoint EndpointIn(const std::string& directory);

/// Checks that only this user may use the directory, and creates it if `make`. Errors:
/// FailedPrecondition when another user may write to it: he could take the agent's place and
/// receive the memory of the training.
Status CheckPrivate(const std::string& directory, bool make);

/// Takes the agent's lock. Errors: AlreadyExists while another process holds it.
Result<FileDescriptor> LockEndpoint(const AgentEndpoint& endpoint);

/// Returns a socket that listens. Requires the lock: a socket that exists then is a dead agent's.
Result<FileDescriptor> Listen(const AgentEndpoint& endpoint);

}  // namespace varve
