#include "share/kept_cells.h"

#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/status_matchers.h"

namespace varve::kept_cells_test {
namespace {

using test::FailsWith;
using test::IsOk;

constexpr std::uint64_t kPart = 4096;

/// Fills a range and returns the ranges that were read for that.
std::vector<std::uint64_t> Reads(Cell& cell, ByteRange wanted) {
  std::vector<std::uint64_t> reads;
  EXPECT_TRUE(IsOk(cell.Fill(wanted, [&](ByteRange range, std::span<std::byte> memory) {
    reads.insert(reads.end(), {range.begin, range.end});
    std::fill(memory.begin(), memory.end(), static_cast<std::byte>(range.begin / kPart));
    return Status::Ok();
  })));
  return reads;
}

TEST(Cell, ReadsEachPartOnce) {
  KeptCells cells(1);
  const auto cell = cells.Of(0, {kPart, 5 * kPart + 100}, kPart);
  ASSERT_TRUE(IsOk(cell));
  using Ends = std::vector<std::uint64_t>;
  EXPECT_EQ(Reads(**cell, {2 * kPart, 3 * kPart}), (Ends{2 * kPart, 3 * kPart}));
  EXPECT_EQ(Reads(**cell, {kPart, 5 * kPart + 100}),
            (Ends{kPart, 2 * kPart, 3 * kPart, 5 * kPart + 100}));
  EXPECT_EQ(Reads(**cell, {kPart, 5 * kPart}), Ends{});
  EXPECT_EQ((*cell)->BytesOf({2 * kPart + 1, 2 * kPart + 2})[0], std::byte{2});
  EXPECT_EQ((*cell)->BytesOf({5 * kPart, 5 * kPart + 100}).size(), 100U);
}

TEST(Cell, DoesNotKeepWhatCouldNotBeRead) {
  KeptCells cells(1);
  const auto cell = cells.Of(0, {0, 2 * kPart}, kPart);
  ASSERT_TRUE(IsOk(cell));
  EXPECT_TRUE(FailsWith(
      (*cell)->Fill({0, kPart},
                    [](ByteRange, std::span<std::byte>) { return Unavailable("no answer"); }),
      StatusCode::kUnavailable, {"no answer"}));
  EXPECT_EQ(Reads(**cell, {0, kPart}).size(), 2U);
}

TEST(KeptCells, KeepsThoseUsedLast) {
  KeptCells cells(2);
  const auto cell = [&](std::uint32_t file) {
    auto made = cells.Of(file, {0, kPart}, kPart);
    EXPECT_TRUE(IsOk(made));
    return *std::move(made);
  };
  const auto reads = [&](std::uint32_t file) { return Reads(*cell(file), {0, kPart}).size() / 2; };
  EXPECT_EQ(reads(1), 1U);
  EXPECT_EQ(reads(2), 1U);
  EXPECT_EQ(reads(1), 0U);
  EXPECT_EQ(reads(3), 1U);  // In the place of 2.
  EXPECT_EQ(reads(1), 0U);
  EXPECT_EQ(reads(2), 1U);
}

TEST(KeptCells, ManyThatWaitForMemoryAllGetSome) {
  KeptCells cells(2);
  std::vector<std::jthread> threads;
  for (std::uint32_t thread = 0; thread < 40; ++thread) {
    threads.emplace_back([&cells, thread] {
      for (std::uint32_t i = 0; i < 50; ++i) {
        const auto cell = cells.Of(thread * 50 + i, {0, kPart}, kPart);
        EXPECT_TRUE(IsOk(cell));
        std::this_thread::yield();
      }
    });
  }
}

TEST(KeptCells, ACellLivesAsLongAsItIsHeld) {
  KeptCells cells(1);
  const auto held = cells.Of(1, {0, kPart}, kPart);
  ASSERT_TRUE(IsOk(held));
  (void)Reads(**held, {0, kPart});
  const auto other = cells.Of(2, {0, kPart}, kPart);
  ASSERT_TRUE(IsOk(other));
  EXPECT_EQ((*held)->BytesOf({0, kPart}).size(), kPart);
  EXPECT_TRUE(Reads(**held, {0, kPart}).empty());
}

}  // namespace
}  // namespace varve::kept_cells_test
