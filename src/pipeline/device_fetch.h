/// The bytes that segments have on devices, on their way to a block of host memory; and the moves
/// of a region.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "device/device_move.h"
#include "pipeline/buffer_pool.h"
#include "pipeline/file_writer.h"
#include "tensor/region.h"
#include "varve/status.h"

namespace varve {

/// Returns the number of bytes of segments on devices among the `bytes` from byte `at` of the first
/// segment on.
std::uint64_t DeviceBytesIn(std::span<const FileSegment> segments, std::uint64_t at,
                            std::uint64_t bytes);

/// Returns a device that a segment is on; nothing when all are in host memory.
std::optional<int> FirstDevice(std::span<const FileSegment> segments);

/// Copies what segments have on devices, and counts it. Threads: safe.
class DeviceFetch {
 public:
  /// `name_of` says the tensor with that number, for messages; may be empty.
  explicit DeviceFetch(std::function<std::string(std::uint32_t owner)> name_of = {})
      : name_of_(std::move(name_of)) {}

  /// Fills those bytes of `out` that segments on devices have; `out` stands for the bytes from byte
  /// `at` of the first segment on. Waits for them. Errors: CudaDevices::Get's and Move's, naming
  /// tensors.
  Status Fetch(std::span<const FileSegment> segments, std::uint64_t at, std::span<std::byte> out);

  /// Fills `out` with the bytes from `at` on of a segment that is produced, by its function, and
  /// counts them where that reads a device. Errors: the function's; of one that reads a device,
  /// naming the tensor.
  Status Produce(const FileSegment& segment, std::uint64_t at, std::span<std::byte> out);

  /// Returns the bytes copied so far; pageable_bytes() those of them that went to memory that the
  /// driver had not registered.
  [[nodiscard]] std::uint64_t device_bytes() const { return device_bytes_; }
  [[nodiscard]] std::uint64_t pageable_bytes() const { return pageable_bytes_; }

 private:
  void Count(const CudaDevices& devices, std::span<const std::byte> out, std::uint64_t bytes);
  const std::function<std::string(std::uint32_t owner)> name_of_;
  std::atomic<std::uint64_t> device_bytes_ = 0;
  std::atomic<std::uint64_t> pageable_bytes_ = 0;
};

/// Appends the moves between the bytes of `region`'s chunk from `begin` on, which are at `on_host`,
/// and the region's memory, which is on that device. Leaves out bytes that the region lacks.
void AppendMoves(const Region& region, int device, std::uint64_t begin,
                 std::span<const std::byte> on_host, std::vector<DeviceMove>* moves);

/// Copies the bytes of `region`'s chunk from `at` on to `out`; the region's memory is on a device.
Status CopyFromDevice(const Region& region, int device, std::uint64_t at, std::span<std::byte> out);

/// Copies `bytes`, the chunk's from `at` on, to the region's memory, which is on a device.
Status CopyToDevice(const Region& region, int device, std::uint64_t at,
                    std::span<const std::byte> bytes);

}  // namespace varve
