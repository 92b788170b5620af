#include "device/device_move.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "support/random.h"

namespace varve::device_move_test {
namespace {

using test::Random;

constexpr std::uint64_t kDeviceBase = std::uint64_t{1} << 40;
constexpr std::uint64_t kHostBase = std::uint64_t{1} << 44;

std::byte* Address(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

/// Where a byte is on the device and on the host.
struct Pair {
  std::uint64_t on_device = 0;
  std::uint64_t on_host = 0;
  friend auto operator<=>(const Pair&, const Pair&) = default;
};

std::uint64_t At(std::uint64_t base, std::uint64_t index, std::uint64_t inner,
                 std::int64_t inner_step, std::int64_t outer_step) {
  return base + index % inner * static_cast<std::uint64_t>(inner_step) +
         index / inner * static_cast<std::uint64_t>(outer_step);
}

void AppendBytes(std::uint64_t on_device, std::uint64_t on_host, std::uint64_t bytes,
                 std::vector<Pair>* pairs) {
  for (std::uint64_t i = 0; i < bytes; ++i) {
    pairs->push_back({on_device + i, on_host + i});
  }
}

void AppendRows(const DeviceMove& move, std::vector<Pair>* pairs) {
  for (std::uint64_t row = move.first; row < move.first + move.count; ++row) {
    AppendBytes(At(reinterpret_cast<std::uint64_t>(move.on_device), row, move.inner,
                   move.device_inner, move.device_outer),
                At(reinterpret_cast<std::uint64_t>(move.on_host), row, move.inner, move.host_inner,
                   move.host_outer),
                move.row_bytes, pairs);
  }
}

/// Returns the bytes that these moves consist of, sorted.
std::vector<Pair> BytesOf(std::span<const DeviceMove> moves) {
  std::vector<Pair> pairs;
  for (const DeviceMove& move : moves) {
    AppendRows(move, &pairs);
  }
  std::sort(pairs.begin(), pairs.end());
  return pairs;
}

/// Does with pieces what the kernel does, and what the driver does with the rest.
std::vector<Pair> BytesOf(const SortedMoves& sorted) {
  std::vector<Pair> pairs;
  for (const DeviceCopy& copy : sorted.copies) {
    AppendBytes(copy.on_device, reinterpret_cast<std::uint64_t>(copy.on_host), copy.bytes, &pairs);
  }
  for (const MovePiece& piece : sorted.pieces) {
    for (std::uint64_t i = piece.first; i < std::uint64_t{piece.first} + piece.count; ++i) {
      const std::uint64_t on_device =
          At(piece.device, i, piece.inner, piece.device_inner, piece.device_outer);
      const std::uint64_t on_host =
          At(piece.host, i, piece.inner, piece.host_inner, piece.host_outer);
      EXPECT_EQ(on_device % piece.item, 0U);
      EXPECT_EQ(on_host % piece.item, 0U);
      AppendBytes(on_device, on_host, piece.item, &pairs);
    }
  }
  for (const DeviceMove& move : sorted.by_rows) {
    AppendRows(move, &pairs);
  }
  std::sort(pairs.begin(), pairs.end());
  return pairs;
}

DeviceMove RunOf(std::uint64_t bytes, std::uint64_t misaligned = 0) {
  DeviceMove move;
  move.on_device = Address(kDeviceBase + misaligned);
  move.on_host = Address(kHostBase + misaligned);
  move.row_bytes = bytes;
  return move;
}

/// Returns a transposed matrix of elements.
DeviceMove Transposed(std::uint64_t rows, std::uint64_t columns, std::int64_t item) {
  DeviceMove move = RunOf(static_cast<std::uint64_t>(item));
  move.inner = columns;
  move.count = rows * columns;
  move.device_inner = item * static_cast<std::int64_t>(rows);
  move.device_outer = item;
  move.host_inner = item;
  move.host_outer = item * static_cast<std::int64_t>(columns);
  return move;
}

DeviceMove AnyMove(Random* random) {
  const std::uint64_t grain = std::uint64_t{1} << random->Below(6);
  const auto step = [&](std::uint64_t most) {
    return static_cast<std::int64_t>(random->Below(most / grain + 1) * grain);
  };
  DeviceMove move;
  move.on_device = Address(kDeviceBase + random->Below(100) * grain);
  move.on_host = Address(kHostBase + random->Below(100) * grain);
  move.row_bytes = random->Between(1, random->OneIn(20) ? 20'000 / grain : 8) * grain;
  move.inner = random->Between(1, 9);
  const std::uint64_t rows = move.inner * random->Between(1, 6);
  move.first = random->Below(rows);
  move.count = random->Between(1, rows - move.first);
  move.device_inner = step(5000);
  move.device_outer = step(5000);
  move.host_inner = step(5000);
  move.host_outer = step(5000);
  return move;
}

TEST(SortMoves, CopiesLongRunsAndLeavesShortAndStridedOnesToTheKernels) {
  EXPECT_EQ(SortMoves(std::vector{RunOf(kLeastCopyBytes)}, true).copies.size(), 1U);
  EXPECT_EQ(SortMoves(std::vector{RunOf(kLeastCopyBytes - 1)}, true).pieces.size(), 1U);
  DeviceMove rows = RunOf(kLeastCopyBytes);
  rows.count = rows.inner = 5;
  rows.device_inner = rows.host_inner = 2 * kLeastCopyBytes;
  EXPECT_EQ(SortMoves(std::vector{rows}, true).copies.size(), 5U);
  const SortedMoves strided = SortMoves(std::vector{Transposed(1000, 1000, 4)}, true);
  EXPECT_EQ(strided.pieces.size(), (4'000'000 + kMostPieceBytes - 1) / kMostPieceBytes);
  EXPECT_TRUE(strided.copies.empty() && strided.by_rows.empty());
}

TEST(SortMoves, CopiesRunsOfAnyLengthAndPlanesByRowsWhereThereAreNoKernels) {
  const std::vector<DeviceMove> moves{RunOf(5), RunOf(kLeastCopyBytes), Transposed(10, 20, 4)};
  const SortedMoves sorted = SortMoves(moves, false);
  EXPECT_EQ(sorted.copies.size(), 2U);
  EXPECT_TRUE(sorted.pieces.empty());
  EXPECT_EQ(sorted.by_rows.size(), 1U);
  EXPECT_TRUE(BytesOf(sorted) == BytesOf(moves));
}

TEST(SortMoves, IsTheSameBytesWithAndWithoutKernels) {
  Random random(3);
  for (int turn = 0; turn < 80; ++turn) {
    std::vector<DeviceMove> moves;
    for (std::uint64_t i = random.Between(1, 5); i > 0; --i) {
      moves.push_back(AnyMove(&random));
    }
    const std::vector<Pair> wanted = BytesOf(moves);
    for (const bool kernels : {true, false}) {
      const SortedMoves sorted = SortMoves(moves, kernels);
      EXPECT_TRUE(kernels || sorted.pieces.empty());
      EXPECT_TRUE(!kernels || sorted.by_rows.empty());
      ASSERT_TRUE(BytesOf(sorted) == wanted) << "turn " << turn << ", kernels " << kernels;
    }
  }
}

TEST(SortMoves, MakesPiecesOfAFewKilobytesInOrderOfTheirElements) {
  Random random(4);
  for (int turn = 0; turn < 300; ++turn) {
    std::vector<DeviceMove> moves{Transposed(200, 300, 2), RunOf(1000, 1), RunOf(1000, 8)};
    moves.push_back(AnyMove(&random));
    random.Shuffle(&moves);
    const SortedMoves sorted = SortMoves(moves, true);
    for (const MovePiece& piece : sorted.pieces) {
      EXPECT_LE(std::uint64_t{piece.count} * piece.item, kMostPieceBytes);
      EXPECT_GT(piece.count, 0U);
    }
    EXPECT_TRUE(
        std::is_sorted(sorted.pieces.begin(), sorted.pieces.end(),
                       [](const MovePiece& a, const MovePiece& b) { return a.item > b.item; }));
  }
}

TEST(SortMoves, TakesTheLargestElementsThatAddressesAllow) {
  for (const auto& [misaligned, item] :
       {std::pair{0, 16}, {1, 1}, {2, 2}, {3, 1}, {4, 4}, {8, 8}, {24, 8}, {32, 16}}) {
    const SortedMoves sorted =
        SortMoves(std::vector{RunOf(4096, static_cast<std::uint64_t>(misaligned))}, true);
    ASSERT_EQ(sorted.pieces.size(), 1U);
    EXPECT_EQ(sorted.pieces[0].item, static_cast<std::uint32_t>(item)) << misaligned;
  }
  DeviceMove row = RunOf(4096);  // A step that is never made does not count.
  row.inner = 7;
  row.device_inner = 3;
  EXPECT_EQ(SortMoves(std::vector{row}, true).pieces.at(0).item, 16U);
}

TEST(SortMoves, LeavesOutWhatIsEmpty) {
  DeviceMove none = RunOf(100);
  none.count = 0;
  const SortedMoves sorted = SortMoves(std::vector{none, RunOf(0)}, true);
  EXPECT_TRUE(sorted.copies.empty() && sorted.pieces.empty() && sorted.by_rows.empty());
}

TEST(SortMoves, LeavesToTheDriverWhatDoesNotFitTheNumbersOfAKernel) {
  const DeviceMove huge = Transposed(std::uint64_t{1} << 17, std::uint64_t{1} << 16, 1);
  const SortedMoves sorted = SortMoves(std::vector{huge}, true);
  EXPECT_TRUE(sorted.pieces.empty());
  EXPECT_EQ(sorted.by_rows.size(), 1U);
}

}  // namespace
}  // namespace varve::device_move_test
