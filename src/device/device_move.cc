#include "device/device_move.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace varve {
namespace {

std::uint64_t AddressOf(const std::byte* memory) { return reinterpret_cast<std::uint64_t>(memory); }

std::uint64_t Magnitude(std::int64_t step) {
  return step < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(step)
                  : static_cast<std::uint64_t>(step);
}

/// Returns the offset of row `index` by these steps.
std::int64_t StepsTo(std::uint64_t index, std::uint64_t inner, std::int64_t inner_step,
                     std::int64_t outer_step) {
  return static_cast<std::int64_t>(index % inner) * inner_step +
         static_cast<std::int64_t>(index / inner) * outer_step;
}

/// Returns the largest element, at most 16 bytes, of which rows, addresses and steps are multiples.
std::uint32_t ElementOf(const DeviceMove& move) {
  std::uint64_t all = AddressOf(move.on_device) | AddressOf(move.on_host) | move.row_bytes | 16;
  if (move.first + move.count > 1) {
    all |= Magnitude(move.device_inner) | Magnitude(move.host_inner);
  }
  if (move.first + move.count > move.inner) {
    all |= Magnitude(move.device_outer) | Magnitude(move.host_outer);
  }
  return std::uint32_t{1} << std::countr_zero(all);
}

void AddRuns(const DeviceMove& move, std::vector<DeviceCopy>* copies) {
  for (std::uint64_t i = move.first; i < move.first + move.count; ++i) {
    copies->push_back(
        {AddressOf(move.on_device + StepsTo(i, move.inner, move.device_inner, move.device_outer)),
         move.on_host + StepsTo(i, move.inner, move.host_inner, move.host_outer), move.row_bytes});
  }
}

/// Adds elements [first, first + count) of a plane in pieces.
void AddPieces(MovePiece plane, std::uint64_t first, std::uint64_t count,
               std::vector<MovePiece>* pieces) {
  const std::uint64_t most = kMostPieceBytes / plane.item;
  for (std::uint64_t done = 0; done < count; done += most) {
    plane.first = static_cast<std::uint32_t>(first + done);
    plane.count = static_cast<std::uint32_t>(std::min(most, count - done));
    pieces->push_back(plane);
  }
}

/// Adds the pieces of a move. Rows that are single elements are a plane as they are; the elements
/// of longer rows are the inner dimension of a plane, whose outer one are the inner rows.
void AddPieces(const DeviceMove& move, std::vector<MovePiece>* pieces) {
  const std::uint32_t item = ElementOf(move);
  const std::uint64_t of_row = move.row_bytes / item;
  MovePiece plane;
  plane.item = item;
  if (of_row == 1) {
    plane.device = AddressOf(move.on_device);
    plane.host = AddressOf(move.on_host);
    plane.device_inner = move.device_inner;
    plane.device_outer = move.device_outer;
    plane.host_inner = move.host_inner;
    plane.host_outer = move.host_outer;
    plane.inner = static_cast<std::uint32_t>(move.inner);
    AddPieces(plane, move.first, move.count, pieces);
    return;
  }
  plane.device_inner = item;
  plane.host_inner = item;
  plane.device_outer = move.device_inner;
  plane.host_outer = move.host_inner;
  plane.inner = static_cast<std::uint32_t>(of_row);
  for (std::uint64_t row = move.first; row < move.first + move.count;) {
    const std::uint64_t end =
        std::min((row / move.inner + 1) * move.inner, move.first + move.count);
    plane.device =
        AddressOf(move.on_device + StepsTo(row, move.inner, move.device_inner, move.device_outer));
    plane.host =
        AddressOf(move.on_host + StepsTo(row, move.inner, move.host_inner, move.host_outer));
    AddPieces(plane, 0, (end - row) * of_row, pieces);
    row = end;
  }
}

/// Returns true where the numbers of a move fit a kernel's.
bool FitsKernel(const DeviceMove& move) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  return move.inner <= kMost && move.first + move.count <= kMost && move.bytes() <= kMost;
}

}  // namespace

SortedMoves SortMoves(std::span<const DeviceMove> moves, bool kernels) {
  SortedMoves sorted;
  for (const DeviceMove& move : moves) {
    if (move.bytes() == 0) {
      continue;
    }
    if (move.row_bytes >= kLeastCopyBytes || (!kernels && move.count == 1)) {
      AddRuns(move, &sorted.copies);
    } else if (kernels && FitsKernel(move)) {
      AddPieces(move, &sorted.pieces);
    } else {
      sorted.by_rows.push_back(move);
    }
  }
  std::stable_sort(sorted.pieces.begin(), sorted.pieces.end(),
                   [](const MovePiece& a, const MovePiece& b) { return a.item > b.item; });
  return sorted;
}

}  // namespace varve
