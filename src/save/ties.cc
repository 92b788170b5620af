#include "save/ties.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
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
        plan->tensors[item].part_of.has_value(), produced, DeviceOf(tensor.source),
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

void TieAddresses(const State& state, LocalPlan* plan) {
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

/// The storages of a value: items of the plan, by their numbers in its archive.
using Storages = std::vector<std::uint32_t>;

/// Returns true where the storages of one value are tied to those of the other, each to its own.
bool AreTied(const Storages& from, const Storages& to, const LocalPlan& plan) {
  return std::equal(from.begin(), from.end(), to.begin(), to.end(),
                    [&](std::uint32_t a, std::uint32_t b) { return plan.tensors[a].tied_to == b; });
}

/// Leaves storages tied where all those of two like values are, each to the one of its number.
void UntieParts(const std::vector<Storages>& storages, LocalPlan* plan) {
  std::vector<PlannedTensor*> loose;
  for (PlannedTensor& tensor : plan->tensors) {
    const auto to = tensor.tied_to ? plan->tensors[*tensor.tied_to].part_of : std::nullopt;
    if (to && (plan->objects[*tensor.part_of].content != plan->objects[*to].content ||
               !AreTied(storages[*tensor.part_of], storages[*to], *plan))) {
      loose.push_back(&tensor);
    }
  }
  for (PlannedTensor* const tensor : loose) {
    tensor->tied_to.reset();
  }
}

}  // namespace

Status FindTies(const State& state, LocalPlan* plan) {
  std::unordered_map<std::string_view, std::uint32_t> objects;  // Looked up only.
  for (std::size_t i = 0; i < state.objects.size(); ++i) {
    for (const std::string& name : state.objects[i].storages) {
      if (!objects.emplace(name, static_cast<std::uint32_t>(i)).second) {
        return InvalidArgument("tensor \"" + name + "\" is a part of two values");
      }
    }
  }
  if (objects.empty()) {
    TieAddresses(state, plan);
    return Status::Ok();
  }
  std::unordered_map<std::string_view, std::uint32_t> items;  // Looked up only.
  for (std::size_t i = 0; i < plan->tensors.size(); ++i) {
    PlannedTensor& tensor = plan->tensors[i];
    const auto found = objects.find(tensor.fqn());
    if (found != objects.end() && tensor.box == WholeBox(tensor.shape())) {
      tensor.part_of = found->second;
      items.emplace(tensor.fqn(), static_cast<std::uint32_t>(i));
    }
  }
  std::vector<Storages> storages(state.objects.size());
  for (std::size_t i = 0; i < state.objects.size(); ++i) {
    for (const std::string& name : state.objects[i].storages) {
      const auto found = items.find(name);
      if (found == items.end()) {
        return InvalidArgument("\"" + state.objects[i].fqn + "\": its storage \"" + name +
                               "\" is no whole tensor of the state");
      }
      storages[i].push_back(found->second);
    }
  }
  TieAddresses(state, plan);
  UntieParts(storages, plan);
  return Status::Ok();
}

}  // namespace varve
