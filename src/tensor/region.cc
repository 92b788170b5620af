#include "tensor/region.h"

#include <algorithm>
#include <cstring>

#include "tensor/box.h"

namespace varve {
namespace {

// A fixed-size copy lets the compiler emit one load and store per element.
template <class T>
void CopyElements(const std::byte* source, std::int64_t source_step, std::byte* target,
                  std::int64_t target_step, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, source, sizeof(T));
    std::memcpy(target, &value, sizeof(T));
    source += source_step;
    target += target_step;
  }
}

struct Bytes16 {
  std::uint64_t low, high;
};

void CopyStrided(const std::byte* source, std::int64_t source_step, std::byte* target,
                 std::int64_t target_step, std::uint64_t count, std::uint64_t item_size) {
  const auto item = static_cast<std::int64_t>(item_size);
  if (source_step == item && target_step == item) {
    std::memcpy(target, source, count * item_size);
    return;
  }
  switch (item_size) {
    case 1: CopyElements<std::uint8_t>(source, source_step, target, target_step, count); return;
    case 2: CopyElements<std::uint16_t>(source, source_step, target, target_step, count); return;
    case 4: CopyElements<std::uint32_t>(source, source_step, target, target_step, count); return;
    case 8: CopyElements<std::uint64_t>(source, source_step, target, target_step, count); return;
    default: CopyElements<Bytes16>(source, source_step, target, target_step, count); return;
  }
}

}  // namespace

Region::Region(const Box& chunk, const StridedMemory& memory, const Box& common)
    : item_size_(memory.item_size), memory_(memory.data) {
  const Strides chunk_strides = RowMajorStrides(chunk.sizes);
  const auto item = static_cast<std::int64_t>(item_size_);
  std::uint64_t chunk_offset = 0;
  std::vector<Dim> dims;
  for (std::size_t d = 0; d < common.sizes.size(); ++d) {
    const auto chunk_step = static_cast<std::uint64_t>(chunk_strides[d] * item);
    const std::int64_t memory_step = memory.strides[d] * item;
    chunk_offset += (common.offsets[d] - chunk.offsets[d]) * chunk_step;
    memory_ += static_cast<std::int64_t>(common.offsets[d] - memory.box.offsets[d]) * memory_step;
    if (common.sizes[d] == 1) {
      continue;
    }
    // Fold into the previous dimension when stepping it equals walking all of this one.
    if (!dims.empty() && dims.back().chunk_step == chunk_step * common.sizes[d] &&
        dims.back().memory_step == memory_step * static_cast<std::int64_t>(common.sizes[d])) {
      dims.back().size *= common.sizes[d];
      dims.back().chunk_step = chunk_step;
      dims.back().memory_step = memory_step;
    } else {
      dims.push_back({common.sizes[d], chunk_step, memory_step});
    }
  }
  std::uint64_t span = 0;
  for (const Dim& dim : dims) {
    span += (dim.size - 1) * dim.chunk_step;
  }
  extent_ = {chunk_offset, chunk_offset + span + item_size_};
  inner_step_ = item;
  if (!dims.empty() && dims.back().chunk_step == item_size_) {
    inner_count_ = dims.back().size;
    inner_step_ = dims.back().memory_step;
    dims.pop_back();
  }
  outer_ = std::move(dims);
  for (const Dim& dim : outer_) {
    run_count_ *= dim.size;
  }
}

std::uint64_t Region::bytes() const { return run_count_ * inner_count_ * item_size_; }

std::vector<ByteRange> Region::TouchedRanges(std::uint64_t max_gap) const {
  // Dimensions whose gaps are all small count as touched throughout; only the others are walked.
  std::uint64_t span = inner_count_ * item_size_;
  std::size_t walked = outer_.size();
  while (walked > 0 && outer_[walked - 1].chunk_step - span <= max_gap) {
    --walked;
    span += (outer_[walked].size - 1) * outer_[walked].chunk_step;
  }
  std::vector<ByteRange> ranges;
  std::vector<std::uint64_t> index(walked, 0);
  std::uint64_t begin = extent_.begin;
  while (true) {
    if (!ranges.empty() && begin - ranges.back().end <= max_gap) {
      ranges.back().end = begin + span;
    } else {
      ranges.push_back({begin, begin + span});
    }
    std::size_t d = walked;
    while (d > 0) {
      --d;
      begin += outer_[d].chunk_step;
      if (++index[d] < outer_[d].size) {
        break;
      }
      begin -= outer_[d].size * outer_[d].chunk_step;
      index[d] = 0;
      if (d == 0) {
        return ranges;
      }
    }
    if (walked == 0) {
      return ranges;
    }
  }
}

Run Region::RunAt(std::uint64_t index) const {
  Run run{extent_.begin, memory_, inner_count_, inner_step_};
  for (std::size_t d = outer_.size(); d-- > 0;) {
    const std::uint64_t i = index % outer_[d].size;
    index /= outer_[d].size;
    run.chunk_begin += i * outer_[d].chunk_step;
    run.memory += static_cast<std::int64_t>(i) * outer_[d].memory_step;
  }
  return run;
}

void Region::ForEachRun(ByteRange range, const std::function<void(const Run&)>& visit) const {
  if (range.begin >= range.end) {
    return;
  }
  const std::uint64_t run_bytes = inner_count_ * item_size_;
  // Runs ascend in the chunk: find the first that ends after range.begin.
  std::uint64_t low = 0;
  std::uint64_t high = run_count_;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (RunAt(middle).chunk_begin + run_bytes <= range.begin) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  for (std::uint64_t index = low; index < run_count_; ++index) {
    Run run = RunAt(index);
    if (run.chunk_begin >= range.end) {
      return;
    }
    std::uint64_t end = run.chunk_begin + run_bytes;
    if (run.chunk_begin < range.begin) {
      const std::uint64_t skip = (range.begin - run.chunk_begin) / item_size_;
      run.memory += static_cast<std::int64_t>(skip) * run.memory_step;
      run.chunk_begin = range.begin;
    }
    end = std::min(end, range.end);
    run.count = (end - run.chunk_begin) / item_size_;
    visit(run);
  }
}

void Region::CopyFromMemory(std::uint64_t chunk_begin, std::span<std::byte> chunk_bytes) const {
  ForEachRun({chunk_begin, chunk_begin + chunk_bytes.size()}, [&](const Run& run) {
    CopyStrided(run.memory, run.memory_step, chunk_bytes.data() + (run.chunk_begin - chunk_begin),
                static_cast<std::int64_t>(item_size_), run.count, item_size_);
  });
}

void Region::CopyToMemory(std::uint64_t chunk_begin, std::span<const std::byte> chunk_bytes) const {
  ForEachRun({chunk_begin, chunk_begin + chunk_bytes.size()}, [&](const Run& run) {
    CopyStrided(chunk_bytes.data() + (run.chunk_begin - chunk_begin),
                static_cast<std::int64_t>(item_size_), run.memory, run.memory_step, run.count,
                item_size_);
  });
}

// ---- the bytes that strided memory covers ----

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
