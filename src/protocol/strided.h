/// The beginning of a part of a box in strided memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/box.h"
#include "varve/tensor.h"

namespace varve::protocol {

/// Returns the bytes from the element at `box.offsets` to the one at `offsets`, which lies in the
/// box.
inline std::ptrdiff_t ByteOffset(const Box& box, const Strides& strides, const Dims& offsets,
                                 DType dtype) {
  std::int64_t elements = 0;
  for (std::size_t d = 0; d < offsets.size(); ++d) {
    elements += static_cast<std::int64_t>(offsets[d] - box.offsets[d]) * strides[d];
  }
  return static_cast<std::ptrdiff_t>(elements * static_cast<std::int64_t>(ItemSize(dtype)));
}

inline Strides StridesOr(const Strides& strides, const Dims& sizes) {
  return strides.empty() ? RowMajorStrides(sizes) : strides;
}

}  // namespace varve::protocol
