/// Box algebra: intersect, contain, subtract, linearise. Pure; all boxes given to one call must
/// have the same number of dimensions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "varve/status.h"
#include "varve/tensor.h"

namespace varve {

/// Returns the number of elements in the box; 1 for a 0-d box. The sizes must not overflow (see
/// CheckBox).
std::uint64_t Volume(const Dims& sizes);

bool IsEmpty(const Box& box);

/// Returns the common part, or nothing when it is empty. Two 0-d boxes intersect in the 0-d box.
std::optional<Box> Intersect(const Box& a, const Box& b);

/// Returns true when every element of `inner` is in `outer`; an empty inner box always is.
bool Contains(const Box& outer, const Box& inner);

/// Returns the parts of `box` not in `hole`, as disjoint boxes (at most two per dimension).
std::vector<Box> Subtract(const Box& box, const Box& hole);

/// Returns what is left of `box` when all of `holes` are taken away. Empty result: fully covered.
std::vector<Box> SubtractAll(const Box& box, const std::vector<Box>& holes);

/// Returns row-major strides in elements.
Strides RowMajorStrides(const Dims& sizes);

/// Returns the boxes that make up elements [begin, end) of a tensor in row-major order: how a piece
/// of a tensor that was cut without regard to its shape (a flat parameter's shard, a `chunk` of
/// `view(-1)`) becomes chunks. The boxes are in that order and each is one contiguous run of it, so
/// the elements of a piece that is stored flat lie one box after the other. At most
/// 2 * dimensions - 1 boxes, none for an empty range; the one element of a 0-d tensor is one box
/// without dimensions. Requires: begin <= end <= the number of elements, which does not overflow
/// (see CheckBox).
std::vector<Box> FlatRunBoxes(const Dims& shape, std::uint64_t begin, std::uint64_t end);

/// Checks untrusted geometry: matching ranks, box inside shape, byte size fits 63 bits.
Status CheckBox(const Dims& shape, const Box& box, std::uint64_t item_size);

}  // namespace varve
