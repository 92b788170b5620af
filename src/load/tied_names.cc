#include "load/tied_names.h"

#include <map>
#include <set>
#include <string_view>

#include "tensor/box.h"
#include "tensor/memory_place.h"

namespace varve {
namespace {

auto Place(const TargetTensor& target) { return PlaceOf(target, target.data, target.strides); }

}  // namespace

void DropTiedNames(std::span<const TargetTensor> targets, std::span<const TargetTensor> filled,
                   std::vector<std::string>* missing) {
  if (missing->empty()) {
    return;
  }
  std::set<decltype(Place(targets.front()))> places;
  for (const TargetTensor& target : filled) {
    places.insert(Place(target));
  }
  std::map<std::string_view, bool> is_filled;  // Of targets by name: all of them.
  for (const TargetTensor& target : targets) {
    const bool one = !IsEmpty(target.box) && places.contains(Place(target));
    const auto [at, is_new] = is_filled.emplace(target.fqn, one);
    at->second = at->second && one;
  }
  std::erase_if(*missing, [&](const std::string& name) {
    const auto found = is_filled.find(name);
    return found != is_filled.end() && found->second;
  });
}

}  // namespace varve
