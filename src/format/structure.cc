#include "format/structure.h"

#include <cstddef>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace varve {
namespace {

std::string Described(const Value& value) {
  switch (value.kind) {
    case ValueKind::kTensorLeaf: return "a tensor";
    case ValueKind::kObjectLeaf: return "a plain value";
    case ValueKind::kList: return "a list";
    case ValueKind::kTuple: return "a tuple";
    case ValueKind::kDict: return "a dict";
    case ValueKind::kWrapped: return "a tensor of the class " + std::string(ClassOf(value));
    case ValueKind::kNamedDict: return "a dict of the class " + std::string(ClassOf(value));
    case ValueKind::kOrderedDict: return "an OrderedDict";
    case ValueKind::kCounter: return "a Counter";
    case ValueKind::kDefaultDict: return "a defaultdict";
    default: return "a value of the kind " + std::to_string(static_cast<int>(value.kind));
  }
}

std::string Below(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

/// Two values that one name cannot stand for.
struct Conflict {
  std::string path;
  const Value* from = nullptr;
  Value into;
};

/// Merges one rank's structure into those of the ranks below it; the result is the first conflict.
std::optional<Conflict> Merge(const Value& from, const std::string& path, Value* into) {
  if (from.kind != into->kind || (from.kind == ValueKind::kWrapped && from.text != into->text)) {
    return Conflict{path, &from, *into};
  }
  if (from.kind == ValueKind::kList) {
    for (std::size_t i = 0; i < from.items.size(); ++i) {
      if (i < into->items.size()) {
        if (auto found = Merge(from.items[i], Below(path, std::to_string(i)), &into->items[i])) {
          return found;
        }
      } else {
        into->items.push_back(from.items[i]);
      }
    }
    return std::nullopt;
  }
  if (!IsMapping(from.kind)) {
    return std::nullopt;  // Equal leaves.
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
      if (auto conflict = Merge(from.items[i + 1],
                                Below(path, key.kind == ValueKind::kStr ? key.text : ToString(key)),
                                &into->items[found->second + 1])) {
        return conflict;
      }
    }
  }
  return std::nullopt;
}

/// Returns the error of values[at], which does not go with those before it. `ranks` are the ranks
/// of `values`.
Status Disagree(const std::vector<Value>& values, const std::vector<std::size_t>& ranks,
                std::size_t at) {
  for (std::size_t below = 0; below < at; ++below) {
    Value into = values[below];
    if (const auto conflict = Merge(values[at], "", &into)) {
      const std::string here = Described(*conflict->from);
      const std::string there = Described(conflict->into);
      return InvalidArgument("ranks disagree about \"" + conflict->path + "\": " + here +
                             " on rank " + std::to_string(ranks[at]) + ", " +
                             (here == there ? "one with other attributes" : there) + " on rank " +
                             std::to_string(ranks[below]) +
                             "; give them different names, or hold the same kind on all ranks");
    }
  }
  return Internal("structures that go together in pairs, but not all");
}

Result<Value> Merged(const std::vector<Value>& values, const std::vector<std::size_t>& ranks) {
  Value merged = values[0];
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (!(values[i] == values[0]) && Merge(values[i], "", &merged)) {
      return Disagree(values, ranks, i);
    }
  }
  return merged;
}

}  // namespace

Result<Value> MergeStructures(const std::vector<Value>& by_rank) {
  if (by_rank.empty()) {
    return Value{.kind = ValueKind::kDict};
  }
  std::vector<std::size_t> ranks(by_rank.size());
  std::iota(ranks.begin(), ranks.end(), std::size_t{0});
  return Merged(by_rank, ranks);
}

Result<Bytes> MergeEncodedStructures(const std::vector<std::string_view>& by_rank) {
  std::vector<std::string_view> distinct;
  std::vector<std::size_t> ranks;  // The first of each.
  std::set<std::string_view> seen;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (!by_rank[rank].empty() && seen.insert(by_rank[rank]).second) {
      distinct.push_back(by_rank[rank]);
      ranks.push_back(rank);
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
  VARVE_ASSIGN_OR_RETURN(const Value merged, Merged(values, ranks));
  return EncodeValue(merged);
}

}  // namespace varve
