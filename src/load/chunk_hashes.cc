#include "load/chunk_hashes.h"

#include <string>
#include <utility>

#include "catalogue/scan.h"
#include "format/data_file.h"

namespace varve {

Result<const ChunkHashes::OfFile*> ChunkHashes::HashesIn(std::uint32_t file) {
  const auto found = known_.find(file);
  if (found != known_.end()) {
    return &found->second;
  }
  VARVE_ASSIGN_OR_RETURN(ReadableFile* const opened, files_.Open(file));
  const std::string name = files_.Reads(file).name;
  auto bytes = ReadHeaderBytes(*opened);
  VARVE_RETURN_IF_ERROR(bytes.status().Annotate(name));
  std::uint32_t crc32c = 0;
  auto header = DecodeHeader(*bytes, &crc32c);
  VARVE_RETURN_IF_ERROR(header.status().Annotate(name));
  OfFile& hashes = known_[file];
  for (const StoredChunk& chunk : header->chunks) {
    hashes.emplace(std::pair(bytes->size() + chunk.bytes.begin, bytes->size() + chunk.bytes.end),
                   chunk.content);
  }
  return &hashes;
}

Result<TensorMetadata> ChunkHashes::Added(TensorMetadata tensor) {
  const std::scoped_lock lock(mutex_);
  for (Chunk& chunk : tensor.chunks.Listed()) {
    VARVE_ASSIGN_OR_RETURN(const OfFile* const hashes, HashesIn(chunk.extent.file));
    const auto found = hashes->find({chunk.extent.begin, chunk.extent.end});
    if (found == hashes->end()) {
      return DataLoss(
          "tensor \"" + tensor.fqn + "\": the header of its file has no chunk at bytes [" +
          std::to_string(chunk.extent.begin) + ", " + std::to_string(chunk.extent.end) + ")");
    }
    chunk.content = found->second;
  }
  return tensor;
}

}  // namespace varve
