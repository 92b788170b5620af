/// The rank that coordinates a call of varve::protocol.
#pragma once

#include <string>
#include <string_view>

#include "varve/coordinator.h"
#include "varve/protocol/checkpoint.h"
#include "varve/status.h"

namespace varve::protocol {

/// Errors: InvalidArgument when the rank that is to coordinate is none. All ranks, who have the
/// same options, find that out without a message.
inline Status CheckCoordinatorRank(const Coordinator& ranks, const CallOptions& options,
                                   std::string_view what) {
  if (options.coordinator_rank >= 0 && options.coordinator_rank < ranks.size()) {
    return Status::Ok();
  }
  return InvalidArgument("coordinator_rank " + std::to_string(options.coordinator_rank) +
                         ": there are ranks 0 to " + std::to_string(ranks.size() - 1))
      .Annotate(what);
}

}  // namespace varve::protocol
