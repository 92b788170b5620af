/// Moves between a device's memory and the host's, in the terms of the driver's calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/cuda_driver.h"
#include "device/move_kernel.h"

namespace varve {

enum class Direction : std::uint8_t { kToHost, kToDevice };

/// Rows of a plane, on a device and in host memory: row i lies `i % inner` inner and `i / inner`
/// outer steps behind the address. The `count` rows from number `first` on are moved. One run of
/// bytes is one row. Device memory is not read by this process.
struct DeviceMove {
  int device = 0;
  std::byte* on_device = nullptr;
  std::byte* on_host = nullptr;
  std::uint64_t row_bytes = 0;
  std::int64_t device_inner = 0;  ///< Steps, bytes.
  std::int64_t device_outer = 0;
  std::int64_t host_inner = 0;
  std::int64_t host_outer = 0;
  std::uint64_t inner = 1;
  std::uint64_t first = 0;
  std::uint64_t count = 1;
  [[nodiscard]] std::uint64_t bytes() const { return count * row_bytes; }
};

/// Returns how far behind the host address row `index` of a move lies, bytes.
inline std::int64_t HostOffsetOf(const DeviceMove& move, std::uint64_t index) {
  return static_cast<std::int64_t>(index % move.inner) * move.host_inner +
         static_cast<std::int64_t>(index / move.inner) * move.host_outer;
}

/// One run of bytes.
struct DeviceCopy {
  CudaDriver::Address on_device = 0;
  std::byte* on_host = nullptr;
  std::uint64_t bytes = 0;
};

/// The same moves, sorted by what makes them best.
struct SortedMoves {
  std::vector<DeviceCopy> copies;   ///< For the copy engine, one by one or in a batch.
  std::vector<MovePiece> pieces;    ///< For the kernels, ordered by the size of elements.
  std::vector<DeviceMove> by_rows;  ///< Neither: strided, where no kernel can be used.
};

/// Sorts moves, all of one device. Runs of at least kLeastCopyBytes are copies; shorter ones and
/// strided memory are pieces where there are `kernels`. Measured on an H100, PCIe 5: 64 KiB pieces
/// in a batch 53.8 GB/s, by the kernel 50.9, copied one by one 18; 4 KiB pieces by the kernel 38.
SortedMoves SortMoves(std::span<const DeviceMove> moves, bool kernels);

inline constexpr std::uint64_t kLeastCopyBytes = std::uint64_t{16} << 10;

/// Bytes of a piece at most: many blocks of threads share the work of a plane.
inline constexpr std::uint64_t kMostPieceBytes = std::uint64_t{64} << 10;

}  // namespace varve
