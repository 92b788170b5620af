/// The search for overlapping chunks in lists of a million chunks from an untrusted index.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "varve/metadata.h"
#include "varve/status.h"

namespace varve {

/// Returns two chunks that share an element, or nothing. Requires: every chunk passed CheckBox with
/// one shape. O(n log n) for any way of cutting a tensor that cuts straight through, again and
/// again (slices, grids, grids of different pitch beside each other). Errors: InvalidArgument for
/// chunks so interlocked that this would take too long.
Result<std::optional<std::pair<std::size_t, std::size_t>>> FindOverlap(
    const std::vector<Chunk>& chunks);

}  // namespace varve
