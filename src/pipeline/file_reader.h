/// The load pipeline: several threads read the scheduled units, compare every block with its
/// checksum, and copy its bytes to the targets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/buffer_pool.h"
#include "plan/load_plan.h"
#include "tensor/region.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// A chunk of a file and where the wanted part of it goes.
struct ReadTarget {
  std::uint64_t chunk_begin = 0;  ///< Of the chunk, in the file.
  Region region;
  std::uint32_t owner = 0;      ///< The caller's number for the tensor this belongs to.
  std::optional<int> device{};  ///< The CUDA device that the region's memory is on.
};

/// A stretch of a file with one checksum over all of it, the CRC-32 of zip files. It is checked
/// when all of the stretch happens to be read.
struct RecordSum {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t crc32 = 0;
  std::uint32_t owner = 0;
};

/// The reads from one file.
struct FileReads {
  ReadableFile* file = nullptr;
  std::string name;
  BlockGeometry geometry;
  /// One per block; must outlive the read. Empty for files of other software, which have none.
  std::span<const std::uint32_t> block_crc32c;
  std::vector<ReadTarget> targets;
  std::vector<RecordSum> records;  ///< Disjoint; the same one may be there several times.
  std::uint32_t number = 0;        ///< The caller's, of this file.
};

/// Returns how many threads read from storage where `wanted` have been asked for; 0: no number.
inline int StorageThreads(int wanted) { return wanted > 0 ? wanted : 8; }

/// The ranks of a node that read the same bytes, and this rank's place among them, from 0.
struct SharedBy {
  std::uint32_t place = 0;
  std::uint32_t ranks = 1;
};

/// The order of the units where ranks read for each other. Units are then parts of cells, and go by
/// windows of `window` cells: first the first cells of all files, then the second ones.
struct ReadOrder {
  std::size_t window = 0;
  double first = 0;  ///< Of the cells of a window, the part after which this rank begins.
  /// Returns how many windows later this rank reads a cell of a file. Empty: units go in order.
  std::function<unsigned(std::uint32_t number, std::uint64_t cell)> delay{};
};

struct ReadFilesOptions {
  std::uint64_t max_gap_bytes = std::uint64_t{64} << 10;
  int threads = 0;  ///< As LoadOptions::io_threads.
  /// Names an owner in messages.
  std::function<std::string(std::uint32_t)> owner_name;
  std::function<void(std::uint64_t)> on_read;  ///< Bytes just read; from reader threads.
  /// Of several ranks each begins at another part, and leaves what it reads in the page cache.
  SharedBy shared_by;
  ReadOrder order;
  std::stop_token stop;
};

/// The outcome of a read, also of one that failed.
struct ReadOutcome {
  Status status;
  std::uint64_t bytes_read = 0;
  /// Of those, not in the page cache when they were read, and not another rank's to bring there.
  std::uint64_t storage_bytes = 0;
  std::vector<bool> touched;  ///< By owner: its memory was written to, at least in part.
  // The mean over the reading threads. Bytes in the page cache count in `read_seconds` alone.
  double read_seconds = 0;
  double verify_seconds = 0;
  double copy_seconds = 0;
  double device_seconds = 0;
  std::uint64_t device_bytes = 0;  ///< Copied to devices.
};

/// Returns how many bytes are read at once: a whole number of checksum blocks that, with the slack
/// of an aligned read, fits a block of the buffer pool.
inline std::uint64_t ReadUnitBytes(std::uint64_t block_bytes) {
  return std::max(kPoolBlockBytes / block_bytes, std::uint64_t{1}) * block_bytes;
}

/// Reads all targets of all files. Memory outside the targets is never written; on failure some
/// targets hold new bytes, some old (see ReadOutcome::touched).
/// Errors: DataLoss naming file, offset and tensor for a block or record that fails its checksum.
ReadOutcome ReadFiles(std::span<FileReads> files, std::uint32_t owner_count, BufferPool& pool,
                      const ReadFilesOptions& options);

/// Reads every block of a file and compares checksums, calling `on_damage` for each that differs.
/// Returns an error when reading itself fails, and Cancelled on `stop`.
Status CheckBlocks(
    ReadableFile& file, const BlockGeometry& geometry, std::span<const std::uint32_t> block_crc32c,
    BufferPool& pool, int threads,
    const std::function<void(ByteRange, std::uint32_t want, std::uint32_t got)>& on_damage,
    const std::function<void(std::uint64_t)>& on_read, const std::stop_token& stop = {});

}  // namespace varve
