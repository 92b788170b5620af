#include "load/fit.h"

#include <algorithm>
#include <cstddef>

#include "tensor/box.h"

namespace varve {

bool DiffersInSizes(const TensorMetadata& stored, const TargetTensor& target) {
  return stored.shape.size() == target.shape.size() && stored.shape != target.shape;
}

TargetTensor OverlapWith(const Dims& shape, TargetTensor target) {
  if (target.strides.empty()) {
    target.strides = RowMajorStrides(target.box.sizes);  // Those of the whole memory.
  }
  target.shape = shape;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    // The first element of the box stays the first: both tensors begin at index 0.
    const std::uint64_t begin = std::min(target.box.offsets[d], shape[d]);
    target.box.sizes[d] = std::min(target.box.sizes[d], shape[d] - begin);
    target.box.offsets[d] = begin;
  }
  return target;
}

}  // namespace varve
