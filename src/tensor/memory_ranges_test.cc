#include <cstddef>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "tensor/box.h"
#include "tensor/region.h"

namespace varve::memory_ranges_test {
namespace {

/// Returns memory of 4-byte elements in the middle of a buffer.
StridedMemory Memory(const Dims& sizes, const Strides& strides) {
  static std::vector<std::byte> buffer(1 << 16);
  return {buffer.data() + buffer.size() / 2, WholeBox(sizes), strides, 4};
}

/// Returns the address of every element, one by one.
std::multiset<const std::byte*> Addresses(const StridedMemory& memory) {
  std::multiset<const std::byte*> addresses;
  const std::uint64_t count = Volume(memory.box.sizes);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::byte* at = memory.data;
    std::uint64_t left = i;
    for (std::size_t d = memory.box.sizes.size(); d-- > 0; left /= memory.box.sizes[d]) {
      at += static_cast<std::int64_t>(left % memory.box.sizes[d]) * memory.strides[d] * 4;
    }
    addresses.insert(at);
  }
  return addresses;
}

TEST(OverlapsItself, TellsViewsOfOrdinaryTensorsFromOverlappingOnes) {
  EXPECT_FALSE(OverlapsItself(Memory({3, 4}, {4, 1})));
  EXPECT_FALSE(OverlapsItself(Memory({3, 4}, {1, 3})));    // Transposed.
  EXPECT_FALSE(OverlapsItself(Memory({3, 4}, {-8, -2})));  // Reversed, every other one.
  EXPECT_FALSE(OverlapsItself(Memory({}, {})));            // 0-d.
  EXPECT_FALSE(OverlapsItself(Memory({0, 4}, {0, 0})));    // Nothing there.
  EXPECT_FALSE(OverlapsItself(Memory({1, 4}, {0, 1})));    // Expanded to one.
  EXPECT_TRUE(OverlapsItself(Memory({3, 4}, {0, 1})));     // Expanded.
  EXPECT_TRUE(OverlapsItself(Memory({5, 3}, {1, 1})));     // unfold(0, 3, 1)
  EXPECT_TRUE(OverlapsItself(Memory({2, 3}, {2, 1})));     // as_strided
  EXPECT_FALSE(OverlapsItself(Memory({2, 3}, {3, 2})));    // 0 2 4 3 5 7: interleaved.
}

TEST(MemoryRanges, AreThoseOfEveryElementForAnyStrides) {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    Dims sizes(static_cast<std::size_t>(pick(0, 3)));
    Strides strides;
    for (std::uint64_t& size : sizes) {
      size = static_cast<std::uint64_t>(pick(1, 4));
      strides.push_back(pick(-9, 9));
    }
    const StridedMemory memory = Memory(sizes, strides);
    const auto addresses = Addresses(memory);
    const std::set<const std::byte*> distinct(addresses.begin(), addresses.end());
    EXPECT_EQ(OverlapsItself(memory), distinct.size() < addresses.size());
    std::multiset<const std::byte*> covered;
    for (const MemoryRange& range : RangesOf(memory)) {
      for (const std::byte* at = range.begin; at < range.end; at += 4) {
        covered.insert(at);
      }
    }
    EXPECT_EQ(covered, addresses);
    const MemoryRange span = SpanOf(memory);
    EXPECT_EQ(span.begin, *addresses.begin());
    EXPECT_EQ(span.end, *addresses.rbegin() + 4);
  }
}

TEST(MemoryRanges, JoinWhatLiesTogether) {
  EXPECT_EQ(RangesOf(Memory({3, 4, 5}, {20, 5, 1})).size(), 1U);
  EXPECT_EQ(RangesOf(Memory({4, 3}, {1, 4})).size(), 1U);
  EXPECT_EQ(RangesOf(Memory({3, 4}, {8, 1})).size(), 3U);
}

}  // namespace
}  // namespace varve::memory_ranges_test
