/// The plan of a load: which stored bytes fill which targets, and in which units they are read.
/// Pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tensor/region.h"
#include "varve/metadata.h"
#include "varve/status.h"

namespace varve {

/// A box of a tensor to be filled.
struct LoadItem {
  std::string_view fqn;  ///< Of the target, which outlives the plan.
  DType dtype = DType::kUInt8;
  Dims shape;
  Box box;
};

/// The part `common` of load item `item` comes from `tensors[tensor].chunks[chunk]`.
struct PlannedRead {
  std::uint32_t item = 0;
  std::uint32_t tensor = 0;
  std::uint32_t chunk = 0;
  Box common;
};

/// Returns the reads that fill the items: exactly one read covers each element. Errors: NotFound
/// for an unknown tensor; InvalidArgument when dtype or shape differ; DataLoss naming the tensor
/// and the box that no chunk holds.
Result<std::vector<PlannedRead>> PlanLoad(const Metadata& metadata,
                                          const std::vector<LoadItem>& items);

/// How a file is checked: blocks of `block_bytes` from `data_begin` on, the last may be short.
struct BlockGeometry {
  std::uint64_t data_begin = 0;
  std::uint64_t file_size = 0;
  std::uint64_t block_bytes = 1;
};

/// Returns the file ranges to read: the needed ones widened to whole blocks (a part of a block
/// cannot be checked), joined across gaps of at most `max_gap` bytes, cut into units of at most
/// `unit_bytes` (a multiple of the block size). Ascending and disjoint. `needed` lies in the data.
std::vector<ByteRange> ScheduleReads(std::vector<ByteRange> needed, const BlockGeometry& geometry,
                                     std::uint64_t max_gap, std::uint64_t unit_bytes);

}  // namespace varve
