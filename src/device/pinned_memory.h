/// Host memory that devices copy to and from at full speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "device/cuda_devices.h"
#include "varve/status.h"

namespace varve {

/// Memory of a few MiB that is registered where the driver grants it. The last one is kept for the
/// next.
class PinnedMemory {
 public:
  /// Takes memory. Errors: OutOfSpace.
  static Result<std::unique_ptr<PinnedMemory>> Make(CudaDevices& devices, int device,
                                                    std::uint64_t bytes);
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory();
  [[nodiscard]] std::span<std::byte> bytes() const { return mapping_.first(bytes_); }

 private:
  PinnedMemory(CudaDevices& devices, std::span<std::byte> mapping, std::uint64_t bytes)
      : devices_(devices), mapping_(mapping), bytes_(bytes) {}
  CudaDevices& devices_;
  const std::span<std::byte> mapping_;
  const std::uint64_t bytes_;
};

}  // namespace varve
