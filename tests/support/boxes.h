/// The slow and obvious way to work with boxes, to compare the fast one with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/random.h"
#include "varve/tensor.h"

namespace varve::test {

/// Returns all element indices in `box`, in row-major order.
inline std::vector<Dims> Elements(const Box& box) {
  std::vector<Dims> elements;
  for (const std::uint64_t size : box.sizes) {
    if (size == 0) {
      return elements;
    }
  }
  Dims index = box.offsets;
  while (true) {
    elements.push_back(index);
    std::size_t d = index.size();
    while (d > 0) {
      --d;
      if (++index[d] < box.offsets[d] + box.sizes[d]) {
        break;
      }
      index[d] = box.offsets[d];
      if (d == 0) {
        return elements;
      }
    }
    if (index.empty()) {
      return elements;
    }
  }
}

/// Returns the place of `index` among the elements of `box` in row-major order.
inline std::uint64_t Linear(const Box& box, const Dims& index) {
  std::uint64_t at = 0;
  for (std::size_t d = 0; d < index.size(); ++d) {
    at = at * box.sizes[d] + (index[d] - box.offsets[d]);
  }
  return at;
}

/// Cuts `whole` into at most `pieces` disjoint boxes that tile it, at random places.
inline std::vector<Box> RandomTiling(const Box& whole, std::size_t pieces, Random* random) {
  std::vector<Box> boxes{whole};
  for (std::size_t attempt = 0; attempt < 4 * pieces && boxes.size() < pieces; ++attempt) {
    if (whole.sizes.empty()) {
      break;
    }
    const std::size_t i = random->Below(boxes.size());
    const std::size_t d = random->Below(whole.sizes.size());
    if (boxes[i].sizes[d] < 2) {
      continue;
    }
    const std::uint64_t first = random->Between(1, boxes[i].sizes[d] - 1);
    Box rest = boxes[i];
    rest.offsets[d] += first;
    rest.sizes[d] -= first;
    boxes[i].sizes[d] = first;
    boxes.push_back(std::move(rest));
  }
  return boxes;
}

}  // namespace varve::test
