#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>

#include "interop/dcp/checksums.h"
#include "interop/dcp/encode.h"
#include "interop/dcp/metadata.h"
#include "varve/dcp.h"

namespace varve {
namespace {

/// Item's begin -> payload, of one file.
using Payloads = std::map<std::uint64_t, std::uint64_t>;

Result<Metadata> DecodedIndex(std::string_view index) {
  VARVE_ASSIGN_OR_RETURN(Decoded decoded, DecodeDcpMetadata(index));
  return std::move(decoded.metadata);
}

}  // namespace

Result<std::string> EncodeDcpIndex(const Metadata& metadata, const Value* structure) {
  DcpEncodeOptions options;
  options.structure = structure;
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
      continue;  // Nothing of it is in the index.
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
    for (Chunk& chunk : tensor.chunks) {
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
