#include "save/ties.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "save/tensor_source.h"
#include "tensor/box.h"
#include "tensor/memory_place.h"

namespace varve {
namespace {

/// Ties the shards of one address.
void TieOneAddress(const State& state, std::vector<std::uint32_t> items, LocalPlan* plan) {
  const auto place = [&](std::uint32_t item) {
    const SourceTensor& tensor = state.tensors[item];
    const bool produced = IsProduced(tensor.source);
    return std::make_tuple(
        produced, DeviceOf(tensor.source),
        PlaceOf(tensor, AddressOf(tensor.source),
                produced ? Strides() : MemoryOf(tensor.source, tensor.dtype, tensor.box).strides));
  };
  std::sort(items.begin(), items.end(), [&](std::uint32_t a, std::uint32_t b) {
    const auto left = place(a);
    const auto right = place(b);
    return left != right ? left < right : state.tensors[a].fqn < state.tensors[b].fqn;
  });
  std::size_t first = 0;
  for (std::size_t i = 1; i < items.size(); ++i) {
    if (place(items[i]) == place(items[first])) {
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
    const SourceTensor& tensor = state.tensors[i];
    const void* const address = AddressOf(tensor.source);
    if (address != nullptr && !IsEmpty(tensor.box)) {
      addresses.emplace_back(reinterpret_cast<std::uintptr_t>(address),
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
