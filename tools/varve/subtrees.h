/// The tensors of a checkpoint by parts of its state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "varve/metadata.h"

namespace varve::cli {

/// The tensors whose names begin with one or two parts of a name: "model", "model.layers".
struct Subtree {
  std::string name;  ///< Without the point or slash behind it.
  std::uint64_t tensor_count = 0;
  std::uint64_t bytes = 0;  ///< Stored.
};

/// Returns the bytes of the elements of a tensor that are stored. Chunks are disjoint, so of a
/// whole tensor these are its size.
std::uint64_t StoredBytes(const TensorMetadata& tensor);
/// Returns the stored bytes of all tensors.
std::uint64_t StoredBytes(const Metadata& metadata);

/// Returns the subtrees of one part, and of two where they hold several tensors, in natural order.
/// Only those of one part where there would be more than a hundred.
std::vector<Subtree> Subtrees(const Metadata& metadata);

}  // namespace varve::cli
