/// The units in which a load reads files, and their order.
#pragma once

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
};

/// Returns the units that hold all targets, in the order of files and offsets. Where several ranks
/// of a node read the same, each begins in another part of them: what one has brought into the page
/// cache the others find there. That goes by windows of 512 MiB for each rank, so that the cache
/// need not hold all.
std::vector<ReadUnit> UnitsOf(std::span<const FileReads> files, std::uint64_t max_gap_bytes,
                              SharedBy shared_by);

}  // namespace varve
