#include "format/structure.h"

#include <cstddef>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace varve {
namespace {

Status Merge(const Value& from, const std::string& path, Value* into) {
  if (from.kind != into->kind) {
    return InvalidArgument("ranks disagree about what is at \"" + path +
                           "\": a container on one, something else on another");
  }
  if (from.kind == ValueKind::kList) {
    for (std::size_t i = 0; i < from.items.size(); ++i) {
      if (i < into->items.size()) {
        VARVE_RETURN_IF_ERROR(
            Merge(from.items[i], path + "." + std::to_string(i), &into->items[i]));
      } else {
        into->items.push_back(from.items[i]);
      }
    }
    return Status::Ok();
  }
  if (!IsMapping(from.kind)) {
    return Status::Ok();  // Equal leaves.
  }
  if (from.kind == ValueKind::kWrapped && from.text != into->text) {
    return InvalidArgument("ranks disagree about the class or the attributes of the tensor at \"" +
                           path + "\": " + std::string(ClassOf(*into)) + " on one, " +
                           std::string(ClassOf(from)) + " on another");
  }
  std::unordered_map<std::string, std::size_t> position;  // Looked up only.
  for (std::size_t i = 0; i + 1 < into->items.size(); i += 2) {
    position.emplace(EncodeValue(into->items[i]), i);
  }
  for (std::size_t i = 0; i + 1 < from.items.size(); i += 2) {
    const Value& key = from.items[i];
    const auto found = position.find(EncodeValue(key));
    if (found == position.end()) {
      into->items.push_back(key);
      into->items.push_back(from.items[i + 1]);
    } else {
      VARVE_RETURN_IF_ERROR(
          Merge(from.items[i + 1], path + "." + ToString(key), &into->items[found->second + 1]));
    }
  }
  return Status::Ok();
}

}  // namespace

Result<Value> MergeStructures(const std::vector<Value>& by_rank) {
  if (by_rank.empty()) {
    return Value{.kind = ValueKind::kDict};
  }
  Value merged = by_rank[0];
  for (std::size_t r = 1; r < by_rank.size(); ++r) {
    if (!(by_rank[r] == by_rank[0])) {
      VARVE_RETURN_IF_ERROR(Merge(by_rank[r], "", &merged));
    }
  }
  return merged;
}

Result<Bytes> MergeEncodedStructures(const std::vector<std::string_view>& by_rank) {
  std::vector<std::string_view> distinct;
  std::set<std::string_view> seen;
  for (const std::string_view structure : by_rank) {
    if (!structure.empty() && seen.insert(structure).second) {
      distinct.push_back(structure);
    }
  }
  if (distinct.empty()) {
    return Bytes();
  }
  if (distinct.size() == 1) {
    VARVE_RETURN_IF_ERROR(CheckEncodedValue(distinct[0]));
    return Bytes(distinct[0]);
  }
  std::vector<Value> values(distinct.size());
  for (std::size_t i = 0; i < distinct.size(); ++i) {
    VARVE_ASSIGN_OR_RETURN(values[i], DecodeValue(distinct[i]));
  }
  VARVE_ASSIGN_OR_RETURN(const Value merged, MergeStructures(values));
  return EncodeValue(merged);
}

}  // namespace varve
