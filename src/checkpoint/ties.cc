#include "checkpoint/ties.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "checkpoint/device_memory.h"
#include "tensor/box.h"

namespace varve {
namespace {

/// Strides that tell where elements are: row-major ones where none are given, and 0 for dimensions
/// that are never stepped along.
Strides EffectiveStrides(const Box& box, Strides strides) {
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

/// Returns a value that is equal for tied shards of one device.
template <class Tensor>
auto PlaceOf(const Tensor& tensor) {
  return std::make_tuple(reinterpret_cast<std::uintptr_t>(tensor.data), tensor.dtype, tensor.shape,
                         tensor.box.offsets, tensor.box.sizes,
                         EffectiveStrides(tensor.box, tensor.strides));
}

/// Ties the shards of one address.
void TieOneAddress(const State& state, std::vector<std::uint32_t> items, LocalPlan* plan) {
  const auto place = [&](std::uint32_t item) {
    return std::make_pair(DeviceOf(state.tensors[item]), PlaceOf(state.tensors[item]));
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
    const SourceTensor& source = state.tensors[i];
    if ((source.data != nullptr || !source.produce) && !IsEmpty(source.box)) {
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

void DropTiedNames(std::span<const TargetTensor> targets, std::span<const TargetTensor> filled,
                   std::vector<std::string>* missing) {
  if (missing->empty()) {
    return;
  }
  std::set<decltype(PlaceOf(targets.front()))> places;
  for (const TargetTensor& target : filled) {
    places.insert(PlaceOf(target));
  }
  std::map<std::string_view, bool> is_filled;  // Of targets by name: all of them.
  for (const TargetTensor& target : targets) {
    const bool one = !IsEmpty(target.box) && places.contains(PlaceOf(target));
    const auto [at, is_new] = is_filled.emplace(target.fqn, one);
    at->second = at->second && one;
  }
  std::erase_if(*missing, [&](const std::string& name) {
    const auto found = is_filled.find(name);
    return found != is_filled.end() && found->second;
  });
}

}  // namespace varve
