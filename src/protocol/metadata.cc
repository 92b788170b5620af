#include "varve/protocol/metadata.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "protocol/codec.h"
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

void PutTensor(const TensorStorageMetadata& tensor, ByteWriter* out) {
  PutDType(tensor.properties.dtype, out);
  out->VarintList(tensor.size);
  out->Varint(tensor.chunks.size());
  for (const ChunkStorageMetadata& chunk : tensor.chunks) {
    PutBox(chunk, out);
  }
}

TensorStorageMetadata GetTensor(ByteReader* in) {
  TensorStorageMetadata tensor;
  tensor.properties.dtype = GetDType(in);
  in->VarintList(&tensor.size);
  const std::uint64_t count = in->Count(2);
  for (std::uint64_t i = 0; i < count && !in->failed(); ++i) {
    tensor.chunks.push_back(GetBox(in));
  }
  return tensor;
}

void GetEntries(ByteReader* in, Metadata* metadata) {
  const std::uint64_t count = in->Count(2);
  for (std::uint64_t i = 0; i < count && !in->failed(); ++i) {
    std::string fqn(in->String());
    const std::uint8_t kind = in->U8();
    bool is_new = false;
    if (kind == kTensorEntry) {
      is_new = metadata->state_dict_metadata.emplace(std::move(fqn), GetTensor(in)).second;
    } else if (kind == kBytesEntry) {
      is_new = metadata->state_dict_metadata.emplace(std::move(fqn), BytesStorageMetadata()).second;
    } else {
      in->Fail("an entry of an unknown kind");
    }
    if (!is_new) {
      in->Fail("a name that appears twice");
    }
  }
}

}  // namespace

std::string ToString(const MetadataIndex& index) {
  return index.offset ? "tensor \"" + index.fqn + "\" at " + varve::ToString(*index.offset)
                      : "\"" + index.fqn + "\"";
}

const TensorStorageMetadata* Metadata::FindTensor(std::string_view fqn) const {
  const auto found = state_dict_metadata.find(fqn);
  return found == state_dict_metadata.end() ? nullptr
                                            : std::get_if<TensorStorageMetadata>(&found->second);
}

bool Metadata::HasBytes(std::string_view fqn) const {
  const auto found = state_dict_metadata.find(fqn);
  return found != state_dict_metadata.end() &&
         std::holds_alternative<BytesStorageMetadata>(found->second);
}

const ChunkStorageMetadata* Metadata::FindChunk(const MetadataIndex& index) const {
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

Status CheckMetadata(const Metadata& metadata) {
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

std::string EncodeMetadata(const Metadata& metadata) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.U8(kVersion);
  out.Varint(metadata.state_dict_metadata.size());
  for (const auto& [fqn, entry] : metadata.state_dict_metadata) {
    out.String(fqn);
    const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
    out.U8(tensor != nullptr ? kTensorEntry : kBytesEntry);
    if (tensor != nullptr) {
      PutTensor(*tensor, &out);
    }
  }
  out.String(metadata.planner_data);
  out.String(metadata.storage_data);
  out.U8(metadata.storage_meta ? 1 : 0);
  if (metadata.storage_meta) {
    out.String(metadata.storage_meta->checkpoint_id);
    out.String(metadata.storage_meta->save_id);
    out.String(metadata.storage_meta->load_id);
  }
  return bytes;
}

Result<Metadata> DecodeMetadata(std::string_view bytes) {
  ByteReader in(bytes);
  const std::uint8_t version = in.U8();
  if (!in.failed() && version != kVersion) {
    return version > kVersion ? Unimplemented("metadata of version " + std::to_string(version))
                              : DataLoss("metadata of version " + std::to_string(version));
  }
  Metadata metadata;
  GetEntries(&in, &metadata);
  metadata.planner_data = in.String();
  metadata.storage_data = in.String();
  if (GetFlag(&in)) {
    StorageMeta& meta = metadata.storage_meta.emplace();
    meta.checkpoint_id = in.String();
    meta.save_id = in.String();
    meta.load_id = in.String();
  }
  if (const Status status = in.Finish(); !status.ok()) {
    return status.Annotate("metadata");
  }
  if (const Status status = CheckMetadata(metadata); !status.ok()) {
    return DataLoss(status.message()).Annotate("metadata");
  }
  return metadata;
}

}  // namespace varve::protocol
