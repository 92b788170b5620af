/// Tensors of which a rank's pickle holds its own part: ShardedTensor and DTensor of PyTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "interop/state_tree.h"
#include "interop/torch/archive.h"
#include "varve/status.h"

namespace varve {

/// Reads the sharded tensors of one archive.
class ShardedTensors {
 public:
  /// `archive` must outlive this. `file` is its number in Metadata::files, `world_size` that of the
  /// checkpoint.
  ShardedTensors(const TorchArchive& archive, std::uint32_t file, std::uint32_t world_size)
      : archive_(archive),
        file_(file),
        world_size_(world_size),
        shards_left_(archive.pickle_record().bytes) {}

  /// Returns the sharded tensor that a node stands for, with the chunks that this file holds and
  /// the digest of how all ranks share it; nothing for any other node. Reads each node once: a
  /// pickle may use one in many places.
  ///
  /// ShardedTensor: `Shard`s with their metadata, and the metadata of all shards, which must list
  /// them. DTensor: `_local_tensor` and `_spec`; the part follows from the placements, the mesh's
  /// shape and the rank's coordinate in it, as torch.chunk cuts. Errors: DataLoss for what
  /// contradicts itself or lies outside the tensor; Unimplemented for placements other than Shard
  /// and Replicate.
  Result<std::optional<StateNode>> At(PickleRef node);

 private:
  const TorchArchive& archive_;
  std::uint32_t file_;
  std::uint32_t world_size_;
  std::uint64_t shards_left_;  // A list that many tensors share would take forever.
  std::unordered_map<PickleRef, StateNode> read_;  // Looked up only.
};

}  // namespace varve
