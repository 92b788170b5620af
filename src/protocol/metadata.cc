#include "varve/protocol/metadata.h"

#include <algorithm>
#include <utility>

#include "protocol/fields.h"
#include "tensor/box.h"

namespace varve::protocol {
namespace {

constexpr std::uint8_t kVersion = 1;
constexpr std::uint8_t kTensorEntry = 1;
constexpr std::uint8_t kBytesEntry = 2;

Status CheckTensor(const TensorStorageMetadata& tensor) {
  const std::uint64_t item_size = ItemSize(tensor.properties.dtype);
  VARVE_RETURN_IF_ERROR(CheckBox(tensor.size, WholeBox(tensor.size), item_size));
  for (const ChunkStorageMetadata& chunk : tensor.chunks) {
    VARVE_RETURN_IF_ERROR(CheckBox(tensor.size, chunk, item_size));
  }
  return Status::Ok();
}

}  // namespace

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, TensorStorageMetadata>& tensor) {
  archive(tensor.properties, tensor.size, tensor.chunks);
}

using Entry = std::variant<TensorStorageMetadata, BytesStorageMetadata>;

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, Entry>& entry) {
  auto kind = std::holds_alternative<TensorStorageMetadata>(entry) ? kTensorEntry : kBytesEntry;
  archive.Enum(kind, kTensorEntry, kBytesEntry, "an entry of an unknown kind");
  if (kind == kTensorEntry) {
    archive(std::get<TensorStorageMetadata>(entry));
  } else if constexpr (!Archive::kWrites) {
    entry = BytesStorageMetadata();
  }
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, StorageMeta>& meta) {
  archive(meta.checkpoint_id, meta.save_id, meta.load_id);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, StateMetadata>& metadata) {
  archive(metadata.state_dict_metadata, metadata.planner_data, metadata.storage_data,
          metadata.storage_meta);
}

std::string ToString(const MetadataIndex& index) {
  return index.offset ? "tensor \"" + index.fqn + "\" at " + varve::ToString(*index.offset)
                      : "\"" + index.fqn + "\"";
}

const TensorStorageMetadata* StateMetadata::FindTensor(std::string_view fqn) const {
  const auto found = state_dict_metadata.find(fqn);
  return found == state_dict_metadata.end() ? nullptr
                                            : std::get_if<TensorStorageMetadata>(&found->second);
}

bool StateMetadata::HasBytes(std::string_view fqn) const {
  const auto found = state_dict_metadata.find(fqn);
  return found != state_dict_metadata.end() &&
         std::holds_alternative<BytesStorageMetadata>(found->second);
}

const ChunkStorageMetadata* StateMetadata::FindChunk(const MetadataIndex& index) const {
  const TensorStorageMetadata* tensor = FindTensor(index.fqn);
  if (tensor == nullptr || !index.offset) {
    return nullptr;
  }
  const auto& chunks = tensor->chunks;
  if (index.index && *index.index < chunks.size() &&
      chunks[*index.index].offsets == *index.offset) {
    return &chunks[*index.index];
  }
  const auto found = std::find_if(chunks.begin(), chunks.end(), [&](const auto& chunk) {
    return chunk.offsets == *index.offset;
  });
  return found == chunks.end() ? nullptr : &*found;
}

Status CheckMetadata(const StateMetadata& metadata) {
  for (const auto& [fqn, entry] : metadata.state_dict_metadata) {
    if (fqn.empty()) {
      return InvalidArgument("a name is empty");
    }
    if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entry)) {
      if (const Status status = CheckTensor(*tensor); !status.ok()) {
        return InvalidArgument(status.message()).Annotate("tensor \"" + fqn + "\"");
      }
    }
  }
  return Status::Ok();
}

std::string EncodeMetadata(const StateMetadata& metadata) {
  return static_cast<char>(kVersion) + EncodeFields(metadata);
}

Result<StateMetadata> DecodeMetadata(std::string_view bytes) {
  const std::uint8_t version = ByteReader(bytes).U8();
  if (!bytes.empty() && version != kVersion) {
    return version > kVersion ? Unimplemented("metadata of version " + std::to_string(version))
                              : DataLoss("metadata of version " + std::to_string(version));
  }
  auto metadata = DecodeFields<StateMetadata>(bytes.substr(bytes.empty() ? 0 : 1));
  Status status = metadata.status();
  if (status.ok()) {
    const Status checked = CheckMetadata(*metadata);
    status = checked.ok() ? checked : DataLoss(checked.message());
  }
  VARVE_RETURN_IF_ERROR(status.Annotate("metadata"));
  return metadata;
}

}  // namespace varve::protocol
