/// The save pipeline: segments are filled into aligned blocks, checksummed in the same pass, and
/// written by several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "pipeline/block_writers.h"
#include "pipeline/buffer_pool.h"
#include "tensor/region.h"
#include "varve/hash.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Fills `out` with the bytes from `at` on of something that is read from elsewhere. Called in
/// ascending order, each byte once, from the thread that called WriteSegments.
using ProduceFunction = std::function<Status(std::uint64_t at, std::span<std::byte> out)>;

/// A run of bytes in a file: given bytes, the packed content of a region of tensor memory, or bytes
/// that a function produces.
struct FileSegment {
  std::uint64_t bytes = 0;
  std::span<const std::byte> literal{};  ///< Used when nothing else is set; outlives the write.
  std::optional<Region> region{};        ///< Covers bytes [begin, begin + bytes) of its chunk.
  ProduceFunction produce{};             ///< Used when there is no region.
  std::uint32_t owner = 0;               ///< Number of the tensor it belongs to, for messages.
  std::uint64_t begin = 0;               ///< Of the region's chunk; a whole element.
  /// The CUDA device that the region's memory is on, or that `produce` reads.
  std::optional<int> device{};
  /// Returns true for content, which is hashed; false for framing.
  [[nodiscard]] bool is_content() const { return region.has_value() || produce != nullptr; }
};

struct WrittenSegments {
  std::vector<std::uint32_t> block_crc32c;  ///< Of the data, block by block.
  std::vector<Hash128> contents;            ///< Of each segment that is content, in order.
  std::uint64_t device_bytes = 0;           ///< Copied from devices.
  std::uint64_t pageable_bytes = 0;         ///< Of those, into memory that is not registered.
};

/// Writes `segments`, one after the other, at `data_begin` of `file` (a multiple of
/// kDirectAlignment). The last block may leave up to 4095 zero bytes behind the data; the caller's
/// Sync cuts them off. Calls are independent; memory is taken from `pool` block by block. Errors:
/// the first I/O error; those of reading a device; what a ProduceFunction returns; Cancelled on
/// `stop`.
Result<WrittenSegments> WriteSegments(WritableFile& file, std::uint64_t data_begin,
                                      std::span<const FileSegment> segments, BufferPool& pool,
                                      const WriteSegmentsOptions& options);

}  // namespace varve
