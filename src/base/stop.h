/// The end of long work on request.
#pragma once

#include <stop_token>

#include "varve/status.h"

namespace varve {

/// Returns Cancelled once stop was requested. Loops over files and blocks call it before each.
inline Status CheckStop(const std::stop_token& stop) {
  return stop.stop_requested() ? Status(StatusCode::kCancelled, "interrupted") : Status::Ok();
}

}  // namespace varve
