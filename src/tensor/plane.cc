// Planes of a region: its two innermost dimensions of rows at a time.

#include <algorithm>

#include "tensor/region.h"

namespace varve {
namespace {

/// Returns the first index below `count` for which `is_wanted`, or `count`; false ones come first.
template <class IsWanted>
std::uint64_t FirstWanted(std::uint64_t count, IsWanted is_wanted) {
  std::uint64_t low = 0;
  std::uint64_t high = count;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (is_wanted(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

std::uint64_t ChunkOffset(const Plane& plane, std::uint64_t row) {
  return row % plane.inner * plane.chunk_inner + row / plane.inner * plane.chunk_outer;
}

std::int64_t MemoryOffset(const Plane& plane, std::uint64_t row) {
  return static_cast<std::int64_t>(row % plane.inner) * plane.memory_inner +
         static_cast<std::int64_t>(row / plane.inner) * plane.memory_outer;
}

/// Visits the part of a row that lies in the range, where that is not all of it.
void VisitCut(const Plane& plane, std::uint64_t row, ByteRange range,
              const std::function<void(const Plane&)>& visit) {
  const std::uint64_t begin = plane.chunk_begin + ChunkOffset(plane, row);
  const std::uint64_t from = std::max(begin, range.begin);
  const std::uint64_t to = std::min(begin + plane.row_bytes, range.end);
  Plane part;
  part.chunk_begin = from;
  part.memory = plane.memory + MemoryOffset(plane, row) + static_cast<std::int64_t>(from - begin);
  part.row_bytes = to - from;
  visit(part);
}

/// Visits the rows of a whole plane that lie in the range.
void VisitClipped(Plane plane, ByteRange range, const std::function<void(const Plane&)>& visit) {
  const auto begin_of = [&](std::uint64_t row) {
    return plane.chunk_begin + ChunkOffset(plane, row);
  };
  std::uint64_t first = FirstWanted(plane.count, [&](std::uint64_t row) {
    return begin_of(row) + plane.row_bytes > range.begin;
  });
  std::uint64_t end =
      FirstWanted(plane.count, [&](std::uint64_t row) { return begin_of(row) >= range.end; });
  if (first >= end) {
    return;
  }
  const auto is_cut = [&](std::uint64_t row) {
    return begin_of(row) < range.begin || begin_of(row) + plane.row_bytes > range.end;
  };
  if (is_cut(first)) {
    VisitCut(plane, first++, range, visit);
  }
  const bool last_is_cut = first < end && is_cut(end - 1);
  end -= last_is_cut ? 1 : 0;
  if (first < end) {
    plane.first = first;
    plane.count = end - first;
    visit(plane);
  }
  if (last_is_cut) {
    VisitCut(plane, end, range, visit);
  }
}

}  // namespace

std::vector<Region::Dim> Region::RowDims() const {
  std::vector<Dim> dims = outer_;
  if (inner_step_ != static_cast<std::int64_t>(item_size_)) {
    dims.push_back({inner_count_, item_size_, inner_step_});
  }
  return dims;
}

void Region::ForEachPlane(ByteRange range, const std::function<void(const Plane&)>& visit) const {
  if (range.begin >= range.end) {
    return;
  }
  std::vector<Dim> dims = RowDims();
  Plane plane;
  plane.row_bytes = contiguous_bytes();
  if (!dims.empty()) {
    plane.inner = dims.back().size;
    plane.count = plane.inner;
    plane.memory_inner = dims.back().memory_step;
    plane.chunk_inner = dims.back().chunk_step;
    dims.pop_back();
  }
  if (!dims.empty()) {
    plane.count *= dims.back().size;
    plane.memory_outer = dims.back().memory_step;
    plane.chunk_outer = dims.back().chunk_step;
    dims.pop_back();
  }
  std::uint64_t planes = 1;
  for (const Dim& dim : dims) {
    planes *= dim.size;
  }
  const std::uint64_t span = ChunkOffset(plane, plane.count - 1) + plane.row_bytes;
  const auto plane_at = [&](std::uint64_t index) {
    Plane at = plane;
    at.chunk_begin = extent_.begin;
    at.memory = memory_;
    for (std::size_t d = dims.size(); d-- > 0;) {
      const std::uint64_t i = index % dims[d].size;
      index /= dims[d].size;
      at.chunk_begin += i * dims[d].chunk_step;
      at.memory += static_cast<std::int64_t>(i) * dims[d].memory_step;
    }
    return at;
  };
  for (std::uint64_t i = FirstWanted(
           planes, [&](std::uint64_t p) { return plane_at(p).chunk_begin + span > range.begin; });
       i < planes; ++i) {
    const Plane whole = plane_at(i);
    if (whole.chunk_begin >= range.end) {
      return;
    }
    VisitClipped(whole, range, visit);
  }
}

}  // namespace varve
