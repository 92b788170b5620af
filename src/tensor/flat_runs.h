/// A range of a flattened tensor as boxes of the whole tensor: how a piece of a tensor that was cut
/// without regard to its shape (a flat parameter's shard, a `chunk` of `view(-1)`) becomes chunks.
#pragma once

#include <cstdint>
#include <vector>

#include "varve/tensor.h"

namespace varve {

/// Returns the boxes that make up elements [begin, end) of a tensor in row-major order. The boxes
/// are in that order and each is one contiguous run of it, so the elements of a piece that is
/// stored flat lie one box after the other. At most 2 * dimensions - 1 boxes, none for an empty
/// range; the one element of a 0-d tensor is one box without dimensions.
///
/// Requires: begin <= end <= the number of elements, which does not overflow (see CheckBox).
std::vector<Box> FlatRunBoxes(const Dims& shape, std::uint64_t begin, std::uint64_t end);

}  // namespace varve
