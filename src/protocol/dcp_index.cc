#include "protocol/dcp_index.h"

#include <algorithm>
#include <map>
#include <optional>

#include "protocol/file_receipt.h"
#include "save/dcp.h"
#include "varve/dcp.h"
#include "varve/metadata.h"
#include "varve/value.h"

namespace varve::protocol {
namespace {

/// Where an item lies.
struct Stored {
  std::uint32_t file = 0;
  ItemReceipt receipt;

  [[nodiscard]] Extent extent() const {
    return {file, receipt.offset, receipt.offset + receipt.length, Encoding::kTorchItem};
  }
};

/// Finds what the ranks have written, by its index.
class StoredItems {
 public:
  Status Add(std::uint32_t rank, const std::vector<WriteResult>& results,
             varve::Metadata* metadata) {
    const auto number = static_cast<std::uint32_t>(metadata->files.size());
    for (const WriteResult& result : results) {
      VARVE_ASSIGN_OR_RETURN(ItemReceipt receipt, DecodeItemReceipt(result.storage_data));
      if (receipt.file) {
        VARVE_RETURN_IF_ERROR(AddFile(rank, std::move(*receipt.file), metadata));
        receipt.file.reset();
      }
      items_[result.index] = {number, std::move(receipt)};
    }
    if (!results.empty() && metadata->files.size() != number + 1) {
      return InvalidArgument("rank " + std::to_string(rank) + " does not say what its file is");
    }
    return Status::Ok();
  }

  [[nodiscard]] Result<const Stored*> Find(const MetadataIndex& index) const {
    const auto found = items_.find(index);
    if (found == items_.end()) {
      return Internal("no rank has written " + ToString(index));
    }
    return &found->second;
  }

 private:
  static Status AddFile(std::uint32_t rank, FileReceipt receipt, varve::Metadata* metadata) {
    if (receipt.block_bytes != metadata->block_bytes) {
      return InvalidArgument("rank " + std::to_string(rank) + " writes with block_bytes " +
                             std::to_string(receipt.block_bytes) + ", rank 0 with " +
                             std::to_string(metadata->block_bytes));
    }
    DataFile file;
    file.name = DcpFileName(rank);
    file.rank = rank;
    file.size = receipt.size;
    file.block_crc32c = std::move(receipt.block_crc32c);
    metadata->files.push_back(std::move(file));
    return Status::Ok();
  }

  std::map<MetadataIndex, Stored> items_;
};

Result<TensorMetadata> StoredTensor(const std::string& fqn, const TensorStorageMetadata& tensor,
                                    const StoredItems& items) {
  TensorMetadata stored;
  stored.fqn = fqn;
  stored.dtype = tensor.properties.dtype;
  stored.shape = tensor.size;
  std::vector<ChunkStorageMetadata> chunks = tensor.chunks;
  std::sort(chunks.begin(), chunks.end(),
            [](const Box& a, const Box& b) { return a.offsets < b.offsets; });
  for (const ChunkStorageMetadata& box : chunks) {
    VARVE_ASSIGN_OR_RETURN(const Stored* item, items.Find({fqn, box.offsets, std::nullopt}));
    Chunk& chunk = stored.chunks.emplace_back();
    chunk.box = box;
    chunk.extent = item->extent();
    chunk.payload = item->receipt.payload;
  }
  return stored;
}

Result<std::optional<Value>> Structure(const std::string& planner_data) {
  if (planner_data.empty()) {
    return std::optional<Value>();
  }
  auto structure = DecodeValue(planner_data);
  if (!structure.ok()) {
    return InvalidArgument("planner_data is not the structure of a state: " +
                           structure.status().message());
  }
  return std::optional<Value>(std::move(*structure));
}

}  // namespace

Result<DcpIndex> MakeIndex(const Metadata& metadata,
                           const std::vector<std::vector<WriteResult>>& results,
                           std::uint64_t block_bytes) {
  varve::Metadata stored;
  stored.format = Format::kDcp;
  stored.block_bytes = block_bytes;
  StoredItems items;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    VARVE_RETURN_IF_ERROR(items.Add(static_cast<std::uint32_t>(rank), results[rank], &stored));
  }
  stored.world_size = static_cast<std::uint32_t>(stored.files.size());

  for (const auto& [fqn, entry] : metadata.state_dict_metadata) {
    if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entry)) {
      VARVE_ASSIGN_OR_RETURN(stored.tensors.emplace_back(), StoredTensor(fqn, *tensor, items));
    } else {
      VARVE_ASSIGN_OR_RETURN(const Stored* item, items.Find({fqn, std::nullopt, std::nullopt}));
      stored.objects.push_back({fqn, item->extent()});
    }
  }
  VARVE_ASSIGN_OR_RETURN(const std::optional<Value> structure, Structure(metadata.planner_data));
  DcpIndex index;
  VARVE_ASSIGN_OR_RETURN(index.metadata, EncodeDcpIndex(stored, structure ? &*structure : nullptr));
  for (const DataFile& file : stored.files) {
    index.files.emplace_back(file.name, file.size);
  }
  return index;
}

}  // namespace varve::protocol
