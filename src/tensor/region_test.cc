#include "tensor/region.h"

#include <cstring>
#include <optional>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "support/boxes.h"
#include "support/random.h"
#include "tensor/box.h"

namespace varve::region_test {
namespace {

using test::Elements;
using test::Linear;
using test::Random;

/// A chunk, memory of any layout, a box both hold, and the memory's bytes.
struct Case {
  std::uint64_t item = 1;
  Box chunk;
  Box common;
  std::string buffer;
  std::uint64_t first = 0;  // Of the element at memory.box.offsets in `buffer`.
  StridedMemory memory;

  Region region() { return {chunk, memory, common}; }

  /// Returns the place of an element, by the definition.
  [[nodiscard]] std::uint64_t InMemory(const Dims& index) const {
    auto at = static_cast<std::int64_t>(first);
    for (std::size_t d = 0; d < index.size(); ++d) {
      at += static_cast<std::int64_t>(index[d] - memory.box.offsets[d]) * memory.strides[d] *
            static_cast<std::int64_t>(item);
    }
    return static_cast<std::uint64_t>(at);
  }
  [[nodiscard]] std::uint64_t InChunk(const Dims& index) const {
    return Linear(chunk, index) * item;
  }
  [[nodiscard]] std::uint64_t chunk_bytes() const { return Volume(chunk.sizes) * item; }
};

/// Gives the case memory for `box` with dimensions in any order, padded, some of them backwards.
/// Row-major and packed in one case of three, so that folding and long runs are met too.
void GiveMemory(const Box& box, Random* random, Case* out) {
  const bool plain = random->OneIn(3);
  std::vector<std::size_t> order(box.sizes.size());
  for (std::size_t d = 0; d < order.size(); ++d) {
    order[d] = d;
  }
  if (!plain) {
    random->Shuffle(&order);
  }
  Strides strides(box.sizes.size());
  std::int64_t step = 1;
  std::int64_t lowest = 0;
  for (std::size_t i = order.size(); i-- > 0;) {
    const std::size_t d = order[i];
    const auto size = static_cast<std::int64_t>(box.sizes[d]);
    if (!plain && random->OneIn(3)) {
      step *= 2;
    }
    strides[d] = step;
    if (!plain && random->OneIn(3)) {
      strides[d] = -step;
      lowest -= (size - 1) * step;
    }
    step *= size;
  }
  out->buffer = random->Bytes(static_cast<std::uint64_t>(step) * out->item);
  out->first = static_cast<std::uint64_t>(-lowest) * out->item;
  out->memory = {reinterpret_cast<std::byte*>(out->buffer.data()) + out->first, box, strides,
                 out->item};
}

/// Returns a random case; nothing when its two boxes do not overlap.
std::optional<Case> RandomCase(Random* random) {
  Case out;
  out.item = std::uint64_t{1} << random->Below(5);
  const Dims shape = random->Shape(random->Below(5), 1, 5);
  out.chunk = random->BoxIn(shape);
  const Box held = random->BoxIn(shape);
  const auto common = Intersect(out.chunk, held);
  if (!common) {
    return std::nullopt;
  }
  out.common = *common;
  if (random->OneIn(4)) {  // Any box inside will do, not only the largest.
    Box part = random->BoxIn(common->sizes);
    for (std::size_t d = 0; d < part.offsets.size(); ++d) {
      part.offsets[d] += common->offsets[d];
    }
    out.common = part;
  }
  GiveMemory(held, random, &out);
  return out;
}

template <class Check>
void ForManyCases(std::uint64_t seed, int count, Check check) {
  Random random(seed);
  int done = 0;
  while (done < count) {
    auto one = RandomCase(&random);
    if (!one) {
      continue;
    }
    // The copy that StridedMemory points into must not move.
    one->memory.data = reinterpret_cast<std::byte*>(one->buffer.data()) + one->first;
    SCOPED_TRACE("case " + std::to_string(done) + ": chunk " + ToString(one->chunk) + " memory " +
                 ToString(one->memory.box) + " common " + ToString(one->common));
    check(&*one, &random);
    if (testing::Test::HasFailure()) {
      return;
    }
    ++done;
  }
}

TEST(Region, CopiesMemoryIntoTheChunkElementByElement) {
  ForManyCases(1, 1500, [](Case* one, Random*) {
    std::string want(one->chunk_bytes(), '\x5A');
    for (const Dims& index : Elements(one->common)) {
      want.replace(one->InChunk(index), one->item,
                   one->buffer.substr(one->InMemory(index), one->item));
    }
    std::string got(one->chunk_bytes(), '\x5A');
    one->region().CopyFromMemory(0, std::as_writable_bytes(std::span(got)));
    EXPECT_EQ(got, want);
  });
}

TEST(Region, CopiesTheChunkIntoMemoryAndTouchesNothingElse) {
  ForManyCases(2, 1500, [](Case* one, Random* random) {
    const std::string chunk = random->Bytes(one->chunk_bytes());
    std::string want = one->buffer;
    for (const Dims& index : Elements(one->common)) {
      want.replace(one->InMemory(index), one->item, chunk.substr(one->InChunk(index), one->item));
    }
    one->region().CopyToMemory(0, std::as_bytes(std::span(chunk)));
    EXPECT_EQ(one->buffer, want);
  });
}

TEST(Region, CopiedInPiecesEqualsCopiedAtOnce) {
  ForManyCases(3, 800, [](Case* one, Random* random) {
    const Region region = one->region();
    std::string whole(one->chunk_bytes(), '\x5A');
    std::string pieces = whole;
    region.CopyFromMemory(0, std::as_writable_bytes(std::span(whole)));
    const std::uint64_t elements = one->chunk_bytes() / one->item;
    for (std::uint64_t at = 0; at < elements;) {
      const std::uint64_t step = random->Between(1, elements - at);
      region.CopyFromMemory(at * one->item, std::as_writable_bytes(std::span(pieces).subspan(
                                                at * one->item, step * one->item)));
      at += step;
    }
    EXPECT_EQ(pieces, whole);
  });
}

TEST(Region, TouchedRangesAreTheTouchedBytesWithSmallGapsJoined) {
  ForManyCases(4, 1500, [](Case* one, Random* random) {
    const std::uint64_t gap = random->OneIn(3) ? 0 : random->Below(40 * one->item);
    std::vector<ByteRange> want;
    for (const Dims& index : Elements(one->common)) {  // Row-major, so ascending in the chunk.
      const std::uint64_t begin = one->InChunk(index);
      if (!want.empty() && begin - want.back().end <= gap) {
        want.back().end = begin + one->item;
      } else {
        want.push_back({begin, begin + one->item});
      }
    }
    const Region region = one->region();
    EXPECT_EQ(region.TouchedRanges(gap), want) << "gap " << gap;
    EXPECT_EQ(region.extent(), (ByteRange{want.front().begin, want.back().end}));
    EXPECT_EQ(region.bytes(), Volume(one->common.sizes) * one->item);
  });
}

TEST(Region, RunsListTheElementsOfTheRangeInOrder) {
  ForManyCases(5, 1500, [](Case* one, Random* random) {
    const std::uint64_t elements = one->chunk_bytes() / one->item;
    const std::uint64_t begin = random->Below(elements + 1) * one->item;
    const ByteRange range{begin,
                          begin + random->Below(elements - begin / one->item + 1) * one->item};
    using Place = std::pair<std::uint64_t, const std::byte*>;
    std::vector<Place> want;
    for (const Dims& index : Elements(one->common)) {
      const std::uint64_t at = one->InChunk(index);
      if (at >= range.begin && at < range.end) {
        want.emplace_back(at, one->memory.data + one->InMemory(index) - one->first);
      }
    }
    std::vector<Place> got;
    one->region().ForEachRun(range, [&](const varve::Run& run) {
      EXPECT_GT(run.count, 0U);
      for (std::uint64_t i = 0; i < run.count; ++i) {
        got.emplace_back(run.chunk_begin + i * one->item,
                         run.memory + static_cast<std::int64_t>(i) * run.memory_step);
      }
    });
    EXPECT_EQ(got, want);
  });
}

TEST(Region, ReadsMemoryWithStrideZeroAsARepeatedElement) {
  std::string buffer = "abc";
  const Box box{{0, 0}, {3, 2}};
  const StridedMemory memory{reinterpret_cast<std::byte*>(buffer.data()), box, {1, 0}, 1};
  std::string chunk(6, '\0');
  Region(box, memory, box).CopyFromMemory(0, std::as_writable_bytes(std::span(chunk)));
  EXPECT_EQ(chunk, "aabbcc");
}

TEST(Region, PackedMemoryIsOneRun) {
  std::string buffer(4 * 6 * 2, '\0');
  const Box box{{2, 0, 0}, {4, 3, 2}};
  const StridedMemory memory{reinterpret_cast<std::byte*>(buffer.data()), box, {6, 2, 1}, 2};
  const Region region(box, memory, box);
  EXPECT_EQ(region.contiguous_bytes(), 48U);
  int runs = 0;
  region.ForEachRun({0, 48}, [&](const varve::Run&) { ++runs; });
  EXPECT_EQ(runs, 1);
}

TEST(Region, ColumnsOfAWideMatrixAreReadableRowByRow) {
  std::string buffer(10 * 4 * 4, '\0');
  const Box chunk{{0, 0}, {10, 1000}};
  const Box columns{{0, 8}, {10, 4}};
  const StridedMemory memory{reinterpret_cast<std::byte*>(buffer.data()), columns, {4, 1}, 4};
  const Region region(chunk, memory, columns);
  EXPECT_EQ(region.contiguous_bytes(), 16U);
  EXPECT_EQ(region.TouchedRanges(0).size(), 10U);
  EXPECT_EQ(region.TouchedRanges(3984).size(), 1U);
  EXPECT_EQ(region.TouchedRanges(3983).size(), 10U);
}

}  // namespace
}  // namespace varve::region_test
