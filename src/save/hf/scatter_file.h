/// An image whose runs are bytes of several files: what is written to the image goes to its place
/// in them, and the last part of the image is kept in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "save/hf/layout.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// The CRC-32C of bytes of a file, which lie in one block of it.
struct BytesSum {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
};

/// Sorts sums by place, and joins those that follow each other in a block.
void JoinSums(std::uint64_t block_bytes, std::vector<BytesSum>* sums);

/// Adds the sums of bytes that lie at `begin` of a file, block by block.
void AddSums(std::uint32_t file, std::uint64_t begin, std::span<const std::byte> data,
             std::uint64_t block_bytes, std::vector<BytesSum>* sums);

/// What a write of an image leaves: the sums of what went to files, and the bytes of its fragments.
struct ScatterOutcome {
  std::vector<BytesSum> sums;
  Bytes fragments;
};

struct ScatterOptions {
  bool direct = false;
  bool shared = false;  ///< Other ranks write to the files too.
};

/// Opens an image of the files of `share`, in `directory`. Each is made when its first bytes come,
/// and made durable with its last of this rank. Writing fills `outcome`. Threads: as WritableFile.
/// Errors: as Storage::OpenForWrite.
Result<std::unique_ptr<WritableFile>> OpenScatterFile(
    Storage& storage, const std::string& directory, const std::vector<HfFileSize>& files,
    std::shared_ptr<const HfShare> share, std::uint64_t block_bytes, ScatterOptions options,
    std::shared_ptr<ScatterOutcome> outcome);

}  // namespace varve
