#include "pipeline/host_copies.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "pipeline/run_threads.h"

namespace varve {
namespace {

constexpr int kMostCopyThreads = 8;

/// Cuts pairs into parts and puts these into groups, each of at most a block's bytes.
std::vector<std::vector<HostAndDevice>> GroupsOf(std::span<const HostAndDevice> pairs) {
  std::vector<std::vector<HostAndDevice>> groups;
  std::uint64_t room = 0;
  for (HostAndDevice rest : pairs) {
    while (rest.bytes > 0) {
      if (room == 0) {
        groups.emplace_back();
        room = kPoolBlockBytes;
      }
      HostAndDevice part = rest;
      part.bytes = std::min(rest.bytes, room);
      groups.back().push_back(part);
      room -= part.bytes;
      rest.on_host += part.bytes;
      rest.on_device += part.bytes;
      rest.bytes -= part.bytes;
    }
  }
  return groups;
}

Status CopyGroup(Direction direction, CudaDevices& devices, const std::vector<HostAndDevice>& group,
                 BufferPool& pool) {
  VARVE_ASSIGN_OR_RETURN(const BufferPool::Lease block, pool.Acquire());
  block.Pin(devices, group.front().device);
  const bool out = direction == Direction::kToHost;
  std::vector<DeviceMove> moves;
  std::byte* place = block.data();
  for (const HostAndDevice& part : group) {
    DeviceMove move;
    move.device = part.device;
    move.on_device = part.on_device;
    move.on_host = place;
    move.row_bytes = part.bytes;
    moves.push_back(move);
    if (!out) {
      std::memcpy(place, part.on_host, part.bytes);
    }
    place += part.bytes;
  }
  VARVE_RETURN_IF_ERROR(devices.Move(direction, moves));
  for (std::size_t i = 0; out && i < group.size(); ++i) {
    StreamCopy({moves[i].on_host, group[i].bytes}, group[i].on_host);
  }
  return Status::Ok();
}

}  // namespace

Status CopyByBlocks(Direction direction, std::span<const HostAndDevice> pairs, BufferPool& pool,
                    int threads) {
  VARVE_ASSIGN_OR_RETURN(CudaDevices* const devices, CudaDevices::Get());
  std::set<std::pair<int, void*>> seen;
  for (const HostAndDevice& pair : pairs) {
    if (seen.emplace(pair.device, pair.stream).second) {
      VARVE_RETURN_IF_ERROR(devices->After(direction, pair.device, pair.stream));
    }
  }
  const auto groups = GroupsOf(pairs);
  const int cores =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMostCopyThreads);
  return RunThreads(groups.size(), threads > 0 ? threads : cores, {},
                    [&](std::size_t i) { return CopyGroup(direction, *devices, groups[i], pool); });
}

}  // namespace varve
