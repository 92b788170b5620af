#include "pipeline/device_moves.h"

namespace varve {

void AppendMoves(const Region& region, int device, std::uint64_t begin,
                 std::span<const std::byte> on_host, std::vector<DeviceMove>* moves) {
  // One structure serves both directions; the direction says which side is written to.
  auto* const host = const_cast<std::byte*>(on_host.data());
  region.ForEachPlane({begin, begin + on_host.size()}, [&](const Plane& plane) {
    DeviceMove move;
    move.device = device;
    move.on_device = plane.memory;
    // Row 0 may lie before these bytes.
    move.on_host = host + static_cast<std::ptrdiff_t>(plane.chunk_begin - begin);
    move.row_bytes = plane.row_bytes;
    move.device_inner = plane.memory_inner;
    move.device_outer = plane.memory_outer;
    move.host_inner = static_cast<std::int64_t>(plane.chunk_inner);
    move.host_outer = static_cast<std::int64_t>(plane.chunk_outer);
    move.inner = plane.inner;
    move.first = plane.first;
    move.count = plane.count;
    moves->push_back(move);
  });
}

}  // namespace varve
