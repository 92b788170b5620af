#include "interop/olmo/merge.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace varve {
namespace {

Status Differs(const std::string& name, const std::string& how, std::size_t rank,
               const ReplicaCheck& check) {
  return DataLoss("\"" + name + "\" " + how + " in " + check.name(0) + " and " +
                  check.name(static_cast<std::uint32_t>(rank)));
}

/// Puts the parts of a sharded tensor together.
Result<StateNode> MergeShards(const std::string& name, const std::vector<StateNode*>& ranks,
                              const ReplicaCheck& check) {
  StateNode merged = std::move(*ranks[0]);
  std::vector<Chunk> parts = std::move(merged.tensor.chunks);
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    std::move(ranks[r]->tensor.chunks.begin(), ranks[r]->tensor.chunks.end(),
              std::back_inserter(parts));
  }
  VARVE_ASSIGN_OR_RETURN(merged.tensor.chunks, ChunksOnce(name, std::move(parts), check));
  return merged;
}

Result<StateNode> MergeTensors(const std::string& name, const std::vector<StateNode*>& ranks,
                               const ReplicaCheck& check) {
  const StoredTensor& first = ranks[0]->tensor;
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    const StoredTensor& tensor = ranks[r]->tensor;
    if (tensor.dtype != first.dtype || tensor.shape != first.shape ||
        tensor.sharding != first.sharding) {
      return Differs(name, "has different dtypes, shapes or shards", r, check);
    }
    if (!first.sharding.empty()) {
      continue;
    }
    const Chunk& a = first.chunks[0];
    const Chunk& b = tensor.chunks[0];
    if (a.strides != b.strides || a.conj != b.conj || a.neg != b.neg) {
      return Differs(name, "has different strides", r, check);
    }
    VARVE_RETURN_IF_ERROR(check.Equal(a.extent, b.extent, "\"" + name + "\""));
  }
  return first.sharding.empty() ? Result<StateNode>(std::move(*ranks[0]))
                                : MergeShards(name, ranks, check);
}

/// Gives a mapping's items the order of `keys`, of which there are as many. Returns a key that the
/// mapping lacks, or nothing.
std::optional<Value> Reorder(const std::vector<Value>& keys, StateNode* mapping) {
  if (mapping->keys == keys) {
    return std::nullopt;
  }
  std::unordered_map<std::string, std::size_t> places;  // Looked up only.
  for (std::size_t i = 0; i < mapping->keys.size(); ++i) {
    places.emplace(EncodeValue(mapping->keys[i]), i);
  }
  std::vector<StateNode> items;
  items.reserve(keys.size());
  for (const Value& key : keys) {
    const auto place = places.extract(EncodeValue(key));
    if (place.empty()) {
      return key;
    }
    items.push_back(std::move(mapping->items[place.mapped()]));
  }
  mapping->keys = keys;
  mapping->items = std::move(items);
  return std::nullopt;
}

}  // namespace

Result<StateNode> MergeRanks(const std::string& name, std::vector<StateNode*> ranks,
                             const ReplicaCheck& check) {
  StateNode& first = *ranks[0];
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    if (ranks[r]->kind != first.kind || ranks[r]->items.size() != first.items.size() ||
        ranks[r]->factory != first.factory) {
      return Differs(name, "is of different kinds or lengths", r, check);
    }
    if (first.kind == ValueKind::kObjectLeaf && ranks[r]->value != first.value) {
      return Differs(name, "has different values", r, check);
    }
  }
  if (first.kind == ValueKind::kTensorLeaf) {
    return MergeTensors(name, ranks, check);
  }
  const auto below = [&](const std::string& part) {
    return name.empty() ? part : name + "." + part;
  };
  for (std::size_t r = 1; r < ranks.size() && first.IsMapping(); ++r) {
    if (const auto missing = Reorder(first.keys, ranks[r])) {
      return DataLoss("\"" + below(KeyText(*missing)) + "\" is in " + check.name(0) +
                      " and not in " + check.name(static_cast<std::uint32_t>(r)));
    }
  }
  StateNode merged;
  merged.kind = first.kind;
  merged.factory = first.factory;
  merged.value = first.value;
  merged.stored_key = first.stored_key;
  merged.keys = first.keys;
  for (std::size_t i = 0; i < first.items.size(); ++i) {
    std::vector<StateNode*> items;
    items.reserve(ranks.size());
    for (StateNode* const rank : ranks) {
      items.push_back(&rank->items[i]);
    }
    const std::string part = first.IsMapping() ? KeyText(first.keys[i]) : std::to_string(i);
    VARVE_ASSIGN_OR_RETURN(StateNode item, MergeRanks(below(part), std::move(items), check));
    merged.items.push_back(std::move(item));
  }
  return merged;
}

}  // namespace varve
