/// Shapes and boxes: the place of a piece in a whole tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace varve {

/// Sizes or offsets, one per dimension, outermost first. A 0-d tensor has none.
using Dims = std::vector<std::uint64_t>;

/// Steps between neighbouring elements, in elements, one per dimension; may be zero or negative.
using Strides = std::vector<std::int64_t>;

/// A box of elements inside a tensor: in dimension d it covers [offsets[d], offsets[d] + sizes[d]).
/// Both lists are as long as the tensor has dimensions. A box with a zero size is empty.
struct Box {
  Dims offsets;
  Dims sizes;
  friend bool operator==(const Box&, const Box&) = default;
};

/// Returns the box that covers a whole tensor of this shape.
Box WholeBox(const Dims& shape);

/// Returns "[0:4, 8:16]", or "[]" for a 0-d tensor.
std::string ToString(const Box& box);
/// Returns "[4, 16]".
std::string ToString(const Dims& dims);

}  // namespace varve
