/// What all shards of a tensor have in common.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "varve/tensor.h"

namespace varve {

struct TensorSpec {
  std::string fqn;
  DType dtype = DType::kUInt8;
  Dims shape;  ///< Of the whole tensor.
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

/// A spec that shards share. A coordinator has as many shards as ranks times tensors, and as many
/// specs as tensors. Null only in a default-constructed shard.
using SharedSpec = std::shared_ptr<const TensorSpec>;

inline SharedSpec MakeSpec(std::string fqn, DType dtype, Dims shape) {
  return std::make_shared<const TensorSpec>(TensorSpec{std::move(fqn), dtype, std::move(shape)});
}

/// Returns whether two shards are of tensors of one name.
inline bool AreOfOneName(const SharedSpec& a, const SharedSpec& b) {
  return a == b || a->fqn == b->fqn;
}

/// Returns whether two specs are alike.
inline bool AreEqual(const SharedSpec& a, const SharedSpec& b) { return a == b || *a == *b; }

}  // namespace varve
