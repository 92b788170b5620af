#include "checkpoint/ties.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "checkpoint/device_memory.h"
#include "tensor/box.h"

namespace varve {
namespace {

/// Strides that tell where elements are: row-major ones where none are given, and 0 for dimensions
/// that are never stepped along.
Strides EffectiveStrides(const SourceTensor& source) {
  Strides strides = source.strides.empty() ? RowMajorStrides(source.box.sizes) : source.strides;
  for (std::size_t d = 0; d < strides.size(); ++d) {
    if (source.box.sizes[d] == 1) {
      strides[d] = 0;
    }
  }
  return strides;
}

/// What tied shards have in common.
auto PlaceOf(const SourceTensor& source) {
  return std::make_tuple(DeviceOf(source), source.dtype, source.shape, source.box.offsets,
                         source.box.sizes, EffectiveStrides(source));
}

/// Ties the shards of one address.
void TieOneAddress(const State& state, std::vector<std::uint32_t> items, LocalPlan* plan) {
  const auto before = [&](std::uint32_t a, std::uint32_t b) {
    const SourceTensor& left = state.tensors[a];
    const SourceTensor& right = state.tensors[b];
    const auto left_place = PlaceOf(left);
    const auto right_place = PlaceOf(right);
    return left_place != right_place ? left_place < right_place : left.fqn < right.fqn;
  };
  std::sort(items.begin(), items.end(), before);
  std::size_t first = 0;
  for (std::size_t i = 1; i < items.size(); ++i) {
    if (PlaceOf(state.tensors[items[i]]) == PlaceOf(state.tensors[items[first]])) {
      plan->tensors[items[i]].tied_to = items[first];
    } else {
      first = i;
    }
  }
}

}  // namespace

void FindTies(const State& state, LocalPlan* plan) {
  std::vector<std::pair<std::uintptr_t, std::uint32_t>> addresses;
  addresses.reserve(state.tensors.size());
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    const SourceTensor& source = state.tensors[i];
    if (!source.produce && !IsEmpty(source.box)) {
      addresses.emplace_back(reinterpret_cast<std::uintptr_t>(source.data),
                             static_cast<std::uint32_t>(i));
    }
  }
  std::sort(addresses.begin(), addresses.end());
  for (std::size_t begin = 0; begin < addresses.size();) {
    std::size_t end = begin + 1;
    while (end < addresses.size() && addresses[end].first == addresses[begin].first) {
      ++end;
    }
    if (end - begin > 1) {
      std::vector<std::uint32_t> items;
      for (std::size_t i = begin; i < end; ++i) {
        items.push_back(addresses[i].second);
      }
      TieOneAddress(state, std::move(items), plan);
    }
    begin = end;
  }
}

}  // namespace varve
