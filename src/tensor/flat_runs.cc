#include "tensor/flat_runs.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "tensor/box.h"

namespace varve {
std::vector<Box> FlatRunBoxes(const Dims& shape, std::uint64_t begin, std::uint64_t end) {
  std::vector<Box> boxes;
  if (begin >= end) {
    return boxes;
  }
  if (shape.empty()) {
    boxes.push_back(WholeBox(shape));
    return boxes;
  }
  const Strides strides = RowMajorStrides(shape);
  const Dims steps(strides.begin(), strides.end());
  for (std::uint64_t at = begin; at < end;) {
    // The outermost dimension along which at least one whole step begins here. The innermost one
    // always fits: its steps are single elements.
    std::size_t d = 0;
    while (at % steps[d] != 0 || end - at < steps[d]) {
      ++d;
    }
    Box box{Dims(shape.size()), shape};
    for (std::size_t outer = 0; outer <= d; ++outer) {
      box.offsets[outer] = at / steps[outer] % shape[outer];
      box.sizes[outer] = 1;
    }
    box.sizes[d] = std::min((end - at) / steps[d], shape[d] - box.offsets[d]);
    at += box.sizes[d] * steps[d];
    boxes.push_back(std::move(box));
  }
  return boxes;
}

}  // namespace varve
