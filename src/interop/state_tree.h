/// A state as a tree of containers and leaves: what the decoders of layouts that other software
/// writes as pickles build first, rename in, and then flatten to the one metadata model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "interop/decoded.h"
#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/tensor.h"
#include "varve/value.h"

namespace varve {

/// Containers and leaves deeper than this are refused. Values have the same limit.
inline constexpr int kMaxStateDepth = 200;

/// A tensor that a state holds, in pieces that files store.
struct StoredTensor {
  DType dtype = DType::kUInt8;
  Dims shape;
  std::vector<Chunk> chunks;
  /// Of a tensor of which one rank's file holds a part: a digest of how all ranks share it.
  /// Empty for a tensor that the file holds whole.
  std::string sharding;
};

/// A container (kDict, kOrderedDict, kCounter, kDefaultDict, kList) or a leaf (kTensorLeaf,
/// kObjectLeaf).
struct StateNode {
  ValueKind kind = ValueKind::kDict;
  std::string factory;           ///< Of a kDefaultDict.
  std::vector<Value> keys;       ///< Of a mapping: as many as items.
  std::vector<StateNode> items;  ///< Of a container.
  StoredTensor tensor;           ///< Of a kTensorLeaf.
  std::string value;             ///< Of a kObjectLeaf: an encoded Value.
  std::string stored_key;        ///< The key in the file, where the container has another one.

  static StateNode OfTensor(StoredTensor tensor);
  static StateNode OfValue(const Value& value);

  [[nodiscard]] bool IsMapping() const;
  /// Returns the item of a str key, or null. Takes time in proportion to the keys.
  [[nodiscard]] StateNode* Find(std::string_view key);
  /// Adds an item under a str key and returns it.
  StateNode* Add(std::string_view key, StateNode item);
  /// Gives item `i` another key and notes the stored one.
  void Rename(std::size_t i, std::string key);
};

/// Returns str(key), of which names are joined: DCP joins them so.
std::string KeyText(const Value& key);

/// Adds the tensors, values and structure of a state to `*out`, whose names are then sorted. A
/// state that is one leaf has the empty name. Errors: InvalidArgument when two entries get one
/// name, and for a tree that is too deep.
Status FlattenState(StateNode state, Decoded* out);

}  // namespace varve
