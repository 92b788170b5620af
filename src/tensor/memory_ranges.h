/// The bytes that strided memory covers, and whether elements share them.
#pragma once

#include <cstddef>
#include <vector>

#include "tensor/region.h"

namespace varve {

/// Bytes [begin, end) of this process's memory.
struct MemoryRange {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
};

/// Returns the smallest range that holds all elements; empty when there are none.
MemoryRange SpanOf(const StridedMemory& memory);

/// Returns the bytes of all elements, as ranges in ascending order of their beginnings. Elements
/// that lie one after the other are one range; ranges overlap where elements share bytes. Cost: one
/// range per contiguous run.
std::vector<MemoryRange> RangesOf(const StridedMemory& memory);

/// Returns true when two elements share bytes, as in an expanded or unfolded tensor. Cost: constant
/// for memory that was cut, transposed or stepped out of an ordinary tensor; that of RangesOf for
/// other strides.
bool OverlapsItself(const StridedMemory& memory);

}  // namespace varve
