// The planes of a region, compared with its runs.

#include <numeric>

#include <gtest/gtest.h>

#include "support/random.h"
#include "tensor/box.h"
#include "tensor/region.h"

namespace varve::plane_test {
namespace {

using test::Random;

/// A byte of a chunk, and the memory that it corresponds to.
struct Mapped {
  std::uint64_t chunk = 0;
  const std::byte* memory = nullptr;
  friend bool operator==(const Mapped&, const Mapped&) = default;
};

void Append(std::uint64_t chunk, const std::byte* memory, std::uint64_t bytes,
            std::vector<Mapped>* all) {
  for (std::uint64_t i = 0; i < bytes; ++i) {
    all->push_back({chunk + i, memory + i});
  }
}

std::vector<Mapped> ByRuns(const Region& region, ByteRange range) {
  std::vector<Mapped> all;
  region.ForEachRun(range, [&](const Run& run) {
    for (std::uint64_t i = 0; i < run.count; ++i) {
      Append(run.chunk_begin + i * region.item_size(),
             run.memory + static_cast<std::int64_t>(i) * run.memory_step, region.item_size(), &all);
    }
  });
  return all;
}

std::vector<Mapped> ByPlanes(const Region& region, ByteRange range) {
  std::vector<Mapped> all;
  region.ForEachPlane(range, [&](const Plane& plane) {
    for (std::uint64_t row = plane.first; row < plane.first + plane.count; ++row) {
      const std::uint64_t inner = row % plane.inner;
      const std::uint64_t outer = row / plane.inner;
      Append(plane.chunk_begin + inner * plane.chunk_inner + outer * plane.chunk_outer,
             plane.memory + static_cast<std::int64_t>(inner) * plane.memory_inner +
                 static_cast<std::int64_t>(outer) * plane.memory_outer,
             plane.row_bytes, &all);
    }
  });
  return all;
}

std::size_t CountPlanes(const Region& region, ByteRange range) {
  std::size_t count = 0;
  region.ForEachPlane(range, [&](const Plane&) { ++count; });
  return count;
}

/// Returns a box around `inner`, at most three elements larger at each side.
Box Around(const Box& inner, Random* random) {
  Box box = inner;
  for (std::size_t d = 0; d < box.sizes.size(); ++d) {
    const std::uint64_t before = random->OneIn(2) ? 0 : random->Below(box.offsets[d] + 1);
    box.offsets[d] -= before;
    box.sizes[d] += before + (random->OneIn(2) ? 0 : random->Between(1, 3));
  }
  return box;
}

/// Returns strides by which the dimensions lie in memory in a random order, some with gaps between.
Strides AnyStrides(const Dims& sizes, Random* random) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (random->OneIn(3)) {
    std::reverse(order.begin(), order.end());  // Row-major: the last one is the innermost.
  } else {
    random->Shuffle(&order);
  }
  Strides strides(sizes.size());
  std::int64_t step = random->OneIn(4) ? 2 : 1;
  for (const std::size_t d : order) {
    strides[d] = step;
    step *= static_cast<std::int64_t>(sizes[d] + (random->OneIn(4) ? random->Between(1, 3) : 0));
  }
  return strides;
}

TEST(Planes, AreTheSameBytesAsTheRunsInAscendingOrder) {
  Random random(7);
  std::size_t compared = 0;
  std::byte origin{};  // Memory is addressed here, and not touched.
  for (int turn = 0; turn < 3000; ++turn) {
    Box common;
    common.sizes = random.Shape(random.Between(1, 5), 1, 5);
    for (std::size_t d = 0; d < common.sizes.size(); ++d) {
      common.offsets.push_back(random.Below(4));
    }
    const Box chunk = Around(common, &random);
    StridedMemory memory;
    memory.data = &origin;
    memory.box = Around(common, &random);
    memory.strides = AnyStrides(memory.box.sizes, &random);
    memory.item_size = std::uint64_t{1} << random.Below(5);
    const Region region(chunk, memory, common);
    const std::uint64_t elements = Volume(chunk.sizes);
    for (int clip = 0; clip < 4; ++clip) {
      const std::uint64_t begin = clip == 0 ? 0 : random.Below(elements);
      const std::uint64_t end = clip == 0 ? elements : random.Between(begin, elements);
      const ByteRange range{begin * memory.item_size, end * memory.item_size};
      const std::vector<Mapped> wanted = ByRuns(region, range);
      ASSERT_TRUE(ByPlanes(region, range) == wanted) << "turn " << turn << ", clip " << clip;
      compared += wanted.size();
    }
  }
  EXPECT_GT(compared, 1'000'000U);
}

TEST(Planes, AreFewForATransposedMatrix) {
  std::byte origin{};
  const Box whole = WholeBox({300, 500});
  const Region region(whole, {&origin, whole, {1, 300}, 4}, whole);
  EXPECT_EQ(CountPlanes(region, {0, 600'000}), 1U);
  EXPECT_EQ(CountPlanes(region, {100, 599'996}), 1U) << "single elements are not cut";
}

TEST(Planes, AreTheWholeRowsAndTheCutOnesOfAMatrixWithGaps) {
  std::byte origin{};
  const Box whole = WholeBox({300, 500});
  const Region region(whole, {&origin, whole, {512, 1}, 4}, whole);
  EXPECT_EQ(CountPlanes(region, {0, 600'000}), 1U);
  EXPECT_EQ(CountPlanes(region, {2000, 4000}), 1U) << "one row";
  EXPECT_EQ(CountPlanes(region, {100, 599'996}), 3U);
  EXPECT_EQ(CountPlanes(region, {100, 104}), 1U);
}

TEST(Planes, AreAsManyAsTheOutermostOfThreeDimensions) {
  std::byte origin{};
  const Box whole = WholeBox({20, 30, 40});
  const Region region(whole, {&origin, whole, {1, 20, 600}, 2}, whole);
  EXPECT_EQ(CountPlanes(region, {0, 48'000}), 20U);
}

TEST(Planes, AreOneForMemoryInOnePieceAndNoneForAnEmptyRange) {
  std::byte origin{};
  const Box whole = WholeBox({20, 30, 40});
  const Region region(whole, {&origin, whole, RowMajorStrides(whole.sizes), 8}, whole);
  EXPECT_EQ(CountPlanes(region, {8, 191'992}), 1U);
  EXPECT_EQ(CountPlanes(region, {800, 800}), 0U);
}

}  // namespace
}  // namespace varve::plane_test
