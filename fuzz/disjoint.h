/// The claim that the boxes of a tensor share no element, by another way than the decoders'.
#pragma once

#include <cstddef>
#include <vector>

#include "tensor/box.h"

namespace varve::fuzz {

/// Compares all pairs; returns true for more boxes than that takes little time.
inline bool AreDisjoint(const std::vector<Box>& boxes) {
  constexpr std::size_t kMost = 300;
  for (std::size_t a = 0; a < boxes.size() && boxes.size() <= kMost; ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      if (Intersect(boxes[a], boxes[b])) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace varve::fuzz
