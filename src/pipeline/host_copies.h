/// Copies between memory of the host, and of the host and devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "device/cuda_devices.h"
#include "pipeline/buffer_pool.h"
#include "varve/status.h"

namespace varve {

/// Two places of the same bytes.
struct CopyPair {
  std::byte* on_host = nullptr;
  std::byte* other = nullptr;  ///< On the device; on the host where there is none.
  std::uint64_t bytes = 0;
  std::optional<int> device{};
  void* stream = nullptr;   ///< That the device's memory is used on.
  std::string_view name{};  ///< Of the tensor, for errors; empty where it has none.
};

/// Copies each pair in that direction, in order with what is queued on the devices, and waits. Bytes
/// of devices pass through blocks of `pool`, which are registered with the driver: memory that is
/// used once is copied through them in less time than it takes to register it. On the calling thread
/// and up to `threads` - 1 others (0: as many as there are cores, at most 8). Places must not
/// overlap. Errors: those of the devices; OutOfSpace.
Status CopyPairs(Direction direction, std::span<const CopyPair> pairs, BufferPool& pool,
                 int threads = 0);

/// Returns why no copy from or to a device can be made in this process; empty where it can.
std::string DeviceProblem();

}  // namespace varve
