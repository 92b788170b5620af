/// From regions of device memory to moves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/device_move.h"
#include "tensor/region.h"

namespace varve {

/// Appends the moves between the bytes of `region`'s chunk from `begin` on, which are at `on_host`,
/// and the region's memory, which is on that device. Leaves out bytes that the region lacks.
void AppendMoves(const Region& region, int device, std::uint64_t begin,
                 std::span<const std::byte> on_host, std::vector<DeviceMove>* moves);

}  // namespace varve
