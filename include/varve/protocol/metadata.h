/// The description of a state that the parts of the checkpoint protocol exchange, in the terms of
/// PyTorch Distributed Checkpoint (DCP): names, sizes, chunks; no content and no files.
///
/// varve::Metadata (varve/metadata.h) is the engine's model of a stored checkpoint, with files and
/// extents. This one has no places in storage: the backend keeps the place of each chunk.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "varve/status.h"
#include "varve/tensor.h"

namespace varve::protocol {

/// Names something stored: a value by its fqn, a piece of a tensor by fqn and offset. `index` is
/// where StateMetadata lists the chunk, a hint that may be wrong; it takes no part in comparisons.
struct MetadataIndex {
  std::string fqn;
  std::optional<Dims> offset;  ///< Of the piece in the whole tensor; none for a value.
  std::optional<std::uint64_t> index;

  friend bool operator==(const MetadataIndex& a, const MetadataIndex& b) {
    return a.fqn == b.fqn && a.offset == b.offset;
  }
  friend bool operator<(const MetadataIndex& a, const MetadataIndex& b) {
    return a.fqn != b.fqn ? a.fqn < b.fqn : a.offset < b.offset;
  }
};

/// Returns `tensor "w" at [0, 8]`, or `"step"`, for messages.
std::string ToString(const MetadataIndex& index);

/// The properties that DCP keeps of a tensor beside its size. Others do not concern bytes.
struct TensorProperties {
  DType dtype = DType::kUInt8;
  friend bool operator==(const TensorProperties&, const TensorProperties&) = default;
};

/// A stored piece of a tensor. DCP's name for what the engine calls a box.
using ChunkStorageMetadata = Box;

struct TensorStorageMetadata {
  TensorProperties properties;
  Dims size;                                 ///< Of the whole tensor.
  std::vector<ChunkStorageMetadata> chunks;  ///< Disjoint.
  friend bool operator==(const TensorStorageMetadata&, const TensorStorageMetadata&) = default;
};

/// A value, stored as EncodeValue (varve/value.h) gives it.
struct BytesStorageMetadata {
  friend bool operator==(const BytesStorageMetadata&, const BytesStorageMetadata&) = default;
};

/// A storage's description of itself and of the save; all of it optional.
struct StorageMeta {
  std::string checkpoint_id;
  std::string save_id;
  std::string load_id;
  friend bool operator==(const StorageMeta&, const StorageMeta&) = default;
};

/// The content of a checkpoint. The planner makes it, the storage keeps it.
struct StateMetadata {
  /// By fqn.
  std::map<std::string, std::variant<TensorStorageMetadata, BytesStorageMetadata>, std::less<>>
      state_dict_metadata;
  /// The planner's own bytes. The default planner's: the containers of the state (State::structure,
  /// merged over the ranks), or nothing.
  std::string planner_data;
  /// The storage's own bytes, for Finish to add and SetUpStorageReader to find.
  std::string storage_data;
  std::optional<StorageMeta> storage_meta;
  friend bool operator==(const StateMetadata&, const StateMetadata&) = default;

  /// Returns null when there is no tensor, or no value, of this name.
  [[nodiscard]] const TensorStorageMetadata* FindTensor(std::string_view fqn) const;
  [[nodiscard]] bool HasBytes(std::string_view fqn) const;
  /// Returns the chunk that `index` names; null when there is none.
  [[nodiscard]] const ChunkStorageMetadata* FindChunk(const MetadataIndex& index) const;
};

/// Checks that names are not empty, boxes lie in their tensors, and sizes do not overflow. Decoding
/// and Load call it; a planner of one's own may. Errors: InvalidArgument naming the tensor.
Status CheckMetadata(const StateMetadata& metadata);

/// Encode to bytes and decode: for sending to other ranks, and for a backend that has no index
/// format of its own. `bytes` is untrusted. Errors: DataLoss when it is malformed; Unimplemented
/// for a newer version's.
std::string EncodeMetadata(const StateMetadata& metadata);
Result<StateMetadata> DecodeMetadata(std::string_view bytes);

}  // namespace varve::protocol
