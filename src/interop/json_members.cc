#include "interop/json_members.h"

#include <algorithm>
#include <cstdint>
#include <string>

namespace varve {

Status ReadJsonMembers(simdjson::dom::element element, std::string_view what, JsonMembers* out) {
  simdjson::dom::object object;
  if (element.get(object)) {
    return DataLoss(std::string(what) + " is not an object");
  }
  out->clear();
  for (const auto& [name, value] : object) {
    out->emplace_back(name, value);
  }
  std::sort(out->begin(), out->end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  const auto twice = std::adjacent_find(
      out->begin(), out->end(), [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != out->end()) {
    return DataLoss("duplicate name \"" + std::string(twice->first) + "\" in " + std::string(what));
  }
  return Status::Ok();
}

const simdjson::dom::element* FindJsonMember(const JsonMembers& members, std::string_view name) {
  const auto at =
      std::lower_bound(members.begin(), members.end(), name,
                       [](const auto& member, std::string_view key) { return member.first < key; });
  return at != members.end() && at->first == name ? &at->second : nullptr;
}

Status ReadJsonDims(simdjson::dom::element element, std::string_view what, Dims* out) {
  simdjson::dom::array array;
  if (element.get(array)) {
    return DataLoss(std::string(what) + " is not a list");
  }
  for (const simdjson::dom::element item : array) {
    std::uint64_t value = 0;
    if (item.get(value)) {
      return DataLoss(std::string(what) + " holds something else than numbers from 0 to 2^64-1");
    }
    out->push_back(value);
  }
  return Status::Ok();
}

}  // namespace varve
