/// The id and the time of a save, by which saves of one name differ.
#pragma once

#include <cstdint>

#include "varve/metadata.h"
#include "varve/status.h"

namespace varve {

/// Returns a new random id. Errors: the system gives no randomness.
Result<SaveId> RandomSaveId();

/// Returns the Unix time in nanoseconds.
std::uint64_t UnixTimeNs();

}  // namespace varve
