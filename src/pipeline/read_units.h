/// The units in which a load reads files, and their order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pipeline/file_reader.h"

namespace varve {

/// A stretch of a file that one thread reads at once, of whole checksum blocks.
struct ReadUnit {
  std::size_t file = 0;
  ByteRange range;
  bool own =
      true;  ///< False where another rank that shares the read is to bring it into the cache.
};

/// Returns the number of the cell that an offset of a file's data lies in. Ranks read cells for
/// each other. A unit never holds parts of two where ReadOrder is given.
inline std::uint64_t CellOf(const BlockGeometry& geometry, std::uint64_t offset) {
  return (offset - geometry.data_begin) / ReadUnitBytes(geometry.block_bytes);
}

/// Returns the range of a cell.
inline ByteRange CellRange(const BlockGeometry& geometry, std::uint64_t cell) {
  const std::uint64_t begin = geometry.data_begin + cell * ReadUnitBytes(geometry.block_bytes);
  return {begin, std::min(begin + ReadUnitBytes(geometry.block_bytes), geometry.file_size)};
}

/// Returns the units that hold all targets, in the order of files and offsets. Where several ranks
/// of a node read the same, each begins in another part of them: what one has brought into the page
/// cache the others find there. That goes by windows of 512 MiB for each rank, so that the cache
/// need not hold all.
std::vector<ReadUnit> UnitsOf(std::span<const FileReads> files, std::uint64_t max_gap_bytes,
                              SharedBy shared_by, const ReadOrder& order = {});

}  // namespace varve
