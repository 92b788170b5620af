#include "protocol/dcp_index.h"

#include <map>
#include <optional>
#include <string>

#include "save/dcp_index.h"
#include "varve/metadata.h"
#include "varve/value.h"

namespace varve::protocol {
namespace {

/// The place of an item.
struct Stored {
  std::uint32_t file = 0;
  DcpExtent extent;
};

/// Finds the items that the ranks have written, by their index.
class StoredItems {
 public:
  /// Adds a rank's results. The first one has the receipt of its file, which lists the items in
  /// order.
  Status Add(std::uint32_t rank, std::uint64_t number, const std::vector<WriteResult>& results,
             DcpIndexBuilder* index) {
    if (results.empty()) {
      return Status::Ok();
    }
    const auto file = DecodeDcpFile(results.front().storage_data);
    if (!file.ok() || file->items.size() != results.size()) {
      return InvalidArgument("the write results of rank " + std::to_string(rank) +
                             " are not those of one FileSystemWriter, in its order");
    }
    VARVE_ASSIGN_OR_RETURN(const std::uint32_t place, index->AddFile(rank, *file, number));
    for (std::size_t i = 0; i < results.size(); ++i) {
      items_[results[i].index] = {place, file->items[i]};
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
  std::map<MetadataIndex, Stored> items_;
};

Status AddTensor(const std::string& fqn, const TensorStorageMetadata& tensor,
                 const StoredItems& items, DcpIndexBuilder* index) {
  std::vector<Chunk>& chunks = index->AddTensor(fqn, tensor.properties.dtype, tensor.size);
  for (const ChunkStorageMetadata& box : tensor.chunks) {
    VARVE_ASSIGN_OR_RETURN(const Stored* item, items.Find({fqn, box.offsets, std::nullopt}));
    chunks.push_back(DcpChunkOf(item->file, box, item->extent));
  }
  return Status::Ok();
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

Result<CheckpointIndex> MakeIndex(const StateMetadata& metadata,
                                  const std::vector<std::vector<WriteResult>>& results,
                                  const WrittenFiles& files) {
  DcpIndexBuilder index(files.block_bytes);
  StoredItems items;
  for (std::size_t i = 0; i < results.size(); ++i) {
    VARVE_RETURN_IF_ERROR(items.Add(files.first_rank + static_cast<std::uint32_t>(i), files.number,
                                    results[i], &index));
  }
  for (const auto& [fqn, entry] : metadata.state_dict_metadata) {
    if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entry)) {
      VARVE_RETURN_IF_ERROR(AddTensor(fqn, *tensor, items, &index));
    } else {
      VARVE_ASSIGN_OR_RETURN(const Stored* item, items.Find({fqn, std::nullopt, std::nullopt}));
      index.AddObject(fqn, item->file, item->extent);
    }
  }
  VARVE_ASSIGN_OR_RETURN(const std::optional<Value> structure, Structure(metadata.planner_data));
  return index.Finish(structure, {}, files.below);
}

}  // namespace varve::protocol
