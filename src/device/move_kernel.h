/// The program by which a device moves pieces between its own memory and pinned host memory.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace varve {

/// Elements of a plane, on a device and in host memory: element i lies `i % inner` inner and
/// `i / inner` outer steps behind the address. A piece is `count` of them from number `first` on.
/// Addresses are those of the unified address space; the host's must be pinned.
struct MovePiece {
  std::uint64_t device = 0;
  std::uint64_t host = 0;
  std::int64_t device_inner = 0;  ///< Steps, bytes.
  std::int64_t device_outer = 0;
  std::int64_t host_inner = 0;
  std::int64_t host_outer = 0;
  std::uint32_t inner = 0;  ///< Elements; at least 1.
  std::uint32_t first = 0;
  std::uint32_t count = 0;  ///< `first + count` is below 2^32.
  std::uint32_t item = 0;   ///< Bytes: 1, 2, 4, 8 or 16; addresses and steps are multiples of it.
};
static_assert(sizeof(MovePiece) == 64);

/// The only argument of the kernel. It fits into the 4 KiB that every device takes, so pieces need
/// no memory of their own that would have to live until the kernel has run.
struct MoveTable {
  static constexpr std::size_t kMost = 62;
  std::uint32_t to_host = 0;  ///< 1: from the device to the host; 0: back.
  std::uint32_t count = 0;
  std::array<MovePiece, kMost> pieces{};
};
static_assert(sizeof(MoveTable) == 8 + 64 * MoveTable::kMost);

/// Threads of one block of the kernel. The grid has one row of blocks for each piece of the table
/// (y), and in it as many blocks as share a piece (x).
inline constexpr unsigned kMoveThreads = 256;

/// Sizes of elements that there are kernels for.
inline constexpr std::array<std::uint32_t, 5> kMoveItems{16, 8, 4, 2, 1};

/// Returns the name of the kernel for elements of that size, "varve_move_16".
std::string MoveKernelName(std::uint32_t item);

/// Returns the kernel for elements of that size in PTX, which the driver compiles for whatever
/// device it has: 40 to 120 ms at the first use on a host, for it keeps the result.
std::string MoveKernel(std::uint32_t item);

}  // namespace varve
