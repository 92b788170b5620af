#include "save/dcp_index.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "catalogue/formats/dcp.h"
#include "format/chunk_grid.h"
#include "interop/dcp/checksums.h"
#include "interop/dcp/data_name.h"
#include "interop/dcp/encode.h"
#include "interop/dcp/metadata.h"
#include "interop/dcp/structure.h"
#include "interop/dcp/wrapped.h"

namespace varve {
namespace {

/// Item's begin -> payload, of one file.
using Payloads = std::map<std::uint64_t, std::uint64_t>;

Result<Metadata> DecodedIndex(std::string_view index) {
  VARVE_ASSIGN_OR_RETURN(Decoded decoded, DecodeDcpMetadata(index));
  return std::move(decoded.metadata);
}

}  // namespace

std::string DcpFileName(std::uint32_t rank, std::uint64_t number) {
  return ToString(DcpDataName{rank, number});
}

Chunk DcpChunkOf(std::uint32_t file, Box box, const DcpExtent& item) {
  Chunk chunk;
  chunk.box = std::move(box);
  chunk.extent = {file, item.offset, item.offset + item.length, Encoding::kTorchItem};
  chunk.payload = item.payload;
  return chunk;
}

DcpIndexBuilder::DcpIndexBuilder(std::uint64_t block_bytes, const SaveId& save_id)
    : block_bytes_(block_bytes), save_id_(save_id) {}

Result<std::uint32_t> DcpIndexBuilder::AddFile(std::uint32_t rank, const DcpFile& file,
                                               std::uint64_t number) {
  if (file.block_bytes != block_bytes_) {
    return InvalidArgument("rank " + std::to_string(rank) + " writes with block_bytes " +
                           std::to_string(file.block_bytes) + ", rank 0 with " +
                           std::to_string(block_bytes_));
  }
  DataFile& added = files_.emplace_back();
  added.name = DcpFileName(rank, number);
  added.rank = rank;
  added.size = file.size;
  added.block_crc32c = file.block_crc32c;
  return static_cast<std::uint32_t>(files_.size() - 1);
}

std::vector<Chunk>& DcpIndexBuilder::AddTensor(const std::string& fqn, DType dtype,
                                               const Dims& shape) {
  const auto [found, is_new] = tensors_.try_emplace(fqn);
  if (is_new) {
    found->second = {fqn, dtype, shape, {}};
  }
  return found->second.chunks.Listed();
}

void DcpIndexBuilder::AddObject(const std::string& fqn, std::uint32_t file, const DcpExtent& item) {
  objects_[fqn] = {fqn, {file, item.offset, item.offset + item.length, Encoding::kTorchItem}};
}

Result<CheckpointIndex> DcpIndexBuilder::Finish(const std::optional<Value>& structure,
                                                std::vector<StoredFile> side_files,
                                                const std::string& below) {
  Metadata metadata;
  metadata.format = Format::kDcp;
  metadata.world_size = static_cast<std::uint32_t>(files_.size());
  metadata.block_bytes = block_bytes_;
  metadata.save_id = save_id_;
  metadata.files = std::move(files_);
  metadata.side_files = std::move(side_files);
  for (StoredFile& file : metadata.side_files) {
    file.name.insert(0, below);
  }
  for (DataFile& file : metadata.files) {
    file.name.insert(0, below);
  }
  for (auto& [fqn, tensor] : tensors_) {
    SortByOffsets(&tensor.chunks.Listed());
    metadata.tensors.push_back(std::move(tensor));
  }
  for (auto& [fqn, object] : objects_) {
    metadata.objects.push_back(std::move(object));
  }
  VARVE_ASSIGN_OR_RETURN(std::string index,
                         EncodeDcpIndex(metadata, structure ? &*structure : nullptr));
  for (DataFile& file : metadata.files) {
    file.name.erase(0, below.size());
  }
  return CheckpointIndex{std::move(metadata.files),
                         {{std::string(kDcpIndexName), std::move(index)}}};
}

Result<std::string> EncodeDcpIndex(const Metadata& metadata, const Value* structure) {
  DcpEncodeOptions options;
  options.structure = structure;
  if (structure != nullptr) {
    options.attributes.emplace_back(kDcpStructure, EncodeValue(*structure));
  }
  options.wrapped = FindDcpWrapped(metadata);
  if (!options.wrapped.empty()) {
    options.attributes.emplace_back(kDcpWrapped, EncodeDcpWrapped(options.wrapped));
  }
  VARVE_ASSIGN_OR_RETURN(std::string index, EncodeDcpMetadata(metadata, options));
  if (metadata.block_bytes > 0) {
    VARVE_RETURN_IF_ERROR(AppendDcpChecksums(metadata, &index));
  }
  return index;
}

Result<std::string> SealDcpIndex(std::string index, const std::vector<DcpNamedFile>& files) {
  VARVE_ASSIGN_OR_RETURN(Metadata metadata, DecodedIndex(index));
  std::vector<Payloads> payloads(metadata.files.size());
  for (const DcpNamedFile& named : files) {
    const auto found = std::find_if(metadata.files.begin(), metadata.files.end(),
                                    [&](const DataFile& file) { return file.name == named.name; });
    if (found == metadata.files.end()) {
      continue;  // The index names nothing of it.
    }
    if (metadata.block_bytes != 0 && metadata.block_bytes != named.file.block_bytes) {
      return InvalidArgument("checksums of " + named.name + " are of blocks of " +
                             std::to_string(named.file.block_bytes) + " bytes, those before of " +
                             std::to_string(metadata.block_bytes));
    }
    metadata.block_bytes = named.file.block_bytes;
    found->size = named.file.size;
    found->block_crc32c = named.file.block_crc32c;
    Payloads& of_file = payloads[static_cast<std::size_t>(found - metadata.files.begin())];
    for (const DcpExtent& item : named.file.items) {
      if (item.payload > 0) {
        of_file[item.offset] = item.payload;
      }
    }
  }
  for (TensorMetadata& tensor : metadata.tensors) {
    for (Chunk& chunk : tensor.chunks.Listed()) {
      const Payloads& of_file = payloads[chunk.extent.file];
      const auto found = of_file.find(chunk.extent.begin);
      if (found != of_file.end() && chunk.extent.encoding == Encoding::kTorchItem) {
        chunk.payload = found->second;
      }
    }
  }
  if (metadata.block_bytes == 0) {
    return index;
  }
  VARVE_RETURN_IF_ERROR(AppendDcpChecksums(metadata, &index));
  return index;
}

}  // namespace varve
