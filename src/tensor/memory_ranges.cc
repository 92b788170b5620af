#include "tensor/memory_ranges.h"

#include <algorithm>
#include <cstdint>

#include "tensor/box.h"

namespace varve {
namespace {

struct Dim {
  std::uint64_t size = 0;
  std::uint64_t step = 0;  // Elements.
};

/// The same elements in another order: from the lowest address on, steps positive and descending.
struct Ordered {
  std::byte* data = nullptr;
  std::vector<Dim> dims;
};

Ordered Order(const StridedMemory& memory) {
  Ordered ordered{memory.data, {}};
  for (std::size_t d = 0; d < memory.box.sizes.size(); ++d) {
    const std::uint64_t size = memory.box.sizes[d];
    const std::int64_t step = memory.strides[d];
    if (size <= 1) {
      continue;
    }
    if (step < 0) {
      ordered.data +=
          step * static_cast<std::int64_t>(size - 1) * static_cast<std::int64_t>(memory.item_size);
    }
    ordered.dims.push_back({size, static_cast<std::uint64_t>(step < 0 ? -step : step)});
  }
  std::sort(ordered.dims.begin(), ordered.dims.end(),
            [](const Dim& a, const Dim& b) { return a.step > b.step; });
  return ordered;
}

/// Returns the number of elements from the first to the last, both included.
std::uint64_t Reach(const Ordered& ordered) {
  std::uint64_t reach = 1;
  for (const Dim& dim : ordered.dims) {
    reach += (dim.size - 1) * dim.step;
  }
  return reach;
}

}  // namespace

MemoryRange SpanOf(const StridedMemory& memory) {
  if (IsEmpty(memory.box)) {
    return {};
  }
  const Ordered ordered = Order(memory);
  return {ordered.data, ordered.data + Reach(ordered) * memory.item_size};
}

std::vector<MemoryRange> RangesOf(const StridedMemory& memory) {
  std::vector<MemoryRange> ranges;
  if (IsEmpty(memory.box)) {
    return ranges;
  }
  Ordered ordered = Order(memory);
  std::uint64_t run = memory.item_size;
  while (!ordered.dims.empty() && ordered.dims.back().step * memory.item_size == run) {
    run *= ordered.dims.back().size;
    ordered.dims.pop_back();
  }
  std::uint64_t count = 1;
  for (const Dim& dim : ordered.dims) {
    count *= dim.size;
  }
  ranges.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::byte* at = ordered.data;
    std::uint64_t left = i;
    for (std::size_t d = ordered.dims.size(); d-- > 0; left /= ordered.dims[d].size) {
      at += left % ordered.dims[d].size * ordered.dims[d].step * memory.item_size;
    }
    ranges.push_back({at, at + run});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const MemoryRange& a, const MemoryRange& b) { return a.begin < b.begin; });
  return ranges;
}

bool OverlapsItself(const StridedMemory& memory) {
  if (IsEmpty(memory.box)) {
    return false;
  }
  // From the smallest step on: a step past everything so far begins a copy of it beside it.
  const Ordered ordered = Order(memory);
  std::uint64_t reach = 1;
  bool nested = true;
  for (std::size_t d = ordered.dims.size(); d-- > 0;) {
    if (ordered.dims[d].step == 0) {
      return true;
    }
    nested = nested && ordered.dims[d].step >= reach;
    reach += (ordered.dims[d].size - 1) * ordered.dims[d].step;
  }
  if (nested) {
    return false;
  }
  if (Volume(memory.box.sizes) > reach) {
    return true;
  }
  const std::vector<MemoryRange> ranges = RangesOf(memory);
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin < ranges[i - 1].end) {
      return true;
    }
  }
  return false;
}

}  // namespace varve
