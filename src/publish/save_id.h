/// What makes one save differ from another of the same name: a random id, and the time.
#pragma once

#include <cstdint>

#include "varve/metadata.h"
#include "varve/status.h"

namespace varve {

/// A new random id. Errors: the system gives no randomness.
Result<SaveId> RandomSaveId();

/// Unix time in nanoseconds.
std::uint64_t UnixTimeNs();

}  // namespace varve
