/// Copies between memory of the host that is used once and memory of devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/cuda_devices.h"
#include "pipeline/buffer_pool.h"
#include "varve/status.h"

namespace varve {

/// The same bytes in memory of the host and of a device.
struct HostAndDevice {
  std::byte* on_host = nullptr;
  std::byte* on_device = nullptr;
  std::uint64_t bytes = 0;
  int device = 0;
  void* stream = nullptr;  ///< That the device's memory is used on.
};

/// Copies each pair in that direction, in order with what is queued on the devices, and waits. The
/// bytes pass through blocks of `pool`, which are registered with the driver: memory that is used
/// once is copied through them in less time than it takes to register it. On the calling thread and
/// up to `threads` - 1 others (0: as many as there are cores, at most 8). Errors: those of the
/// devices; OutOfSpace.
Status CopyByBlocks(Direction direction, std::span<const HostAndDevice> pairs, BufferPool& pool,
                    int threads = 0);

}  // namespace varve
