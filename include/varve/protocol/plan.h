/// Plans: the items that a rank writes or reads. Plain values that travel between ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "varve/protocol/metadata.h"
#include "varve/status.h"
#include "varve/tensor.h"

namespace varve::protocol {

enum class WriteItemType : std::uint8_t {
  kTensor = 1,  ///< A whole tensor.
  kShard = 2,   ///< A part of one.
  kByteIo = 3,  ///< A value, as EncodeValue gives it.
};

enum class LoadItemType : std::uint8_t { kTensor = 1, kByteIo = 2 };

struct BytesIOWriteData {
  std::uint64_t nbytes = 0;
  friend bool operator==(const BytesIOWriteData&, const BytesIOWriteData&) = default;
};

struct TensorWriteData {
  ChunkStorageMetadata chunk;  ///< The chunk to write.
  TensorProperties properties;
  Dims size;  ///< Of the whole tensor.
  friend bool operator==(const TensorWriteData&, const TensorWriteData&) = default;
};

/// One item to write. A reader asks for it by its index.
struct WriteItem {
  MetadataIndex index;
  WriteItemType type = WriteItemType::kByteIo;
  std::optional<BytesIOWriteData> bytes_io_data;  ///< Of kByteIo.
  std::optional<TensorWriteData> tensor_data;     ///< Of the others.
  friend bool operator==(const WriteItem&, const WriteItem&) = default;
};

/// Returns the bytes of content: of the chunk (DCP's tensor_storage_size gives the whole tensor's)
/// or value.
std::uint64_t ItemBytes(const WriteItem& item);

/// One piece to read: `lengths` elements from `storage_offsets` of the stored chunk
/// `storage_index` to `dest_offsets` of the piece in memory `dest_index`. A value has no offsets.
struct ReadItem {
  LoadItemType type = LoadItemType::kByteIo;
  MetadataIndex dest_index;
  Dims dest_offsets;
  MetadataIndex storage_index;
  Dims storage_offsets;
  Dims lengths;
  friend bool operator==(const ReadItem&, const ReadItem&) = default;
};

/// The items that one rank writes.
struct SavePlan {
  std::vector<WriteItem> items;
  std::string storage_data;  ///< The StorageWriter's own bytes.
  std::string planner_data;  ///< The SavePlanner's own bytes.
  friend bool operator==(const SavePlan&, const SavePlan&) = default;
};

/// The items that one rank reads.
struct LoadPlan {
  std::vector<ReadItem> items;
  std::string storage_data;  ///< The StorageReader's own bytes.
  std::string planner_data;  ///< The LoadPlanner's own bytes.
  friend bool operator==(const LoadPlan&, const LoadPlan&) = default;
};

/// The result of writing one item.
struct WriteResult {
  MetadataIndex index;
  std::uint64_t size_in_bytes = 0;  ///< As stored.
  std::string storage_data;         ///< The StorageWriter's own bytes: its place, say.
  friend bool operator==(const WriteResult&, const WriteResult&) = default;
};

/// Encode to bytes and decode, for a Coordinator to carry. The bytes are untrusted: every bound and
/// every box is checked. Errors: DataLoss when they are malformed.
std::string EncodeSavePlan(const SavePlan& plan);
Result<SavePlan> DecodeSavePlan(std::string_view bytes);
std::string EncodeLoadPlan(const LoadPlan& plan);
Result<LoadPlan> DecodeLoadPlan(std::string_view bytes);
std::string EncodeWriteResults(const std::vector<WriteResult>& results);
Result<std::vector<WriteResult>> DecodeWriteResults(std::string_view bytes);

}  // namespace varve::protocol
