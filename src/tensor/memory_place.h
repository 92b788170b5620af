/// The place of strided memory, as a value that is equal for two names of one memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>

#include "tensor/box.h"
#include "varve/tensor.h"

namespace varve {

/// Returns strides that determine the elements' places: row-major ones where none are given, and 0
/// for dimensions that are never stepped along.
inline Strides EffectiveStrides(const Box& box, Strides strides) {
  if (strides.empty()) {
    strides = RowMajorStrides(box.sizes);
  }
  for (std::size_t d = 0; d < std::min(strides.size(), box.sizes.size()); ++d) {
    if (box.sizes[d] == 1) {
      strides[d] = 0;
    }
  }
  return strides;
}

/// Returns a value that is equal for tied shards of one device. `data` and `strides` are of the
/// memory that holds `tensor.box`.
template <class Tensor>
auto PlaceOf(const Tensor& tensor, const void* data, const Strides& strides) {
  return std::make_tuple(reinterpret_cast<std::uintptr_t>(data), tensor.dtype, tensor.shape,
                         tensor.box.offsets, tensor.box.sizes,
                         EffectiveStrides(tensor.box, strides));
}

}  // namespace varve
