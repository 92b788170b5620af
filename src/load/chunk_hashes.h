/// The hashes of stored chunks, which the data files' headers have and the index does not.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "catalogue/files.h"
#include "varve/hash.h"
#include "varve/metadata.h"
#include "varve/status.h"

namespace varve {

/// Reads the headers that are needed, and keeps the hashes of these files in memory.
/// Threads: any.
class ChunkHashes {
 public:
  /// `files` must outlive this.
  explicit ChunkHashes(CheckpointFiles& files) : files_(files) {}

  /// Returns the tensor with the hash of each chunk. It is one of a native checkpoint. Errors:
  /// CheckpointFiles::Open's; DataLoss where a header has no such chunk.
  Result<TensorMetadata> Added(TensorMetadata tensor);

 private:
  /// By the first byte of the chunk in the file, and the one behind its last.
  using OfFile = std::map<std::pair<std::uint64_t, std::uint64_t>, Hash128>;

  Result<const OfFile*> HashesIn(std::uint32_t file);

  CheckpointFiles& files_;
  std::mutex mutex_;
  std::map<std::uint32_t, OfFile> known_;  // Guarded by mutex_. By the file's number.
};

}  // namespace varve
