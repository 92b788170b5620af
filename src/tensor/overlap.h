/// The search for overlapping boxes, in lists of a million from an untrusted index.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "varve/status.h"
#include "varve/tensor.h"

namespace varve {

/// Two numbers of a list, or nothing.
using OverlappingPair = std::optional<std::pair<std::size_t, std::size_t>>;

/// Returns two boxes that share an element, or nothing. Requires: every box passed CheckBox with
/// one shape. O(n) for slices in order, O(n log n) for any way of cutting a tensor that cuts
/// straight through, again and again (slices, grids, grids of different pitch beside each other).
/// Errors: InvalidArgument for boxes so interlocked that this would take too long.
Result<OverlappingPair> FindOverlap(std::span<const Box* const> boxes);
Result<OverlappingPair> FindOverlap(const std::vector<Box>& boxes);

/// Returns the boxes of items that have one each, as chunks do.
template <class Item>
std::vector<const Box*> BoxesOf(const std::vector<Item>& items) {
  std::vector<const Box*> boxes;
  boxes.reserve(items.size());
  for (const Item& item : items) {
    boxes.push_back(&item.box);
  }
  return boxes;
}

}  // namespace varve
