#include "pipeline/host_copies.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/run_threads.h"

namespace varve {
namespace {

constexpr int kMostCopyThreads = 8;

/// Cuts pairs into parts and puts these into groups, each of at most a block's bytes, and all of
/// devices or none.
std::vector<std::vector<CopyPair>> GroupsOf(std::span<const CopyPair> pairs) {
  std::vector<std::vector<CopyPair>> groups;
  std::uint64_t room = 0;
  for (CopyPair rest : pairs) {
    while (rest.bytes > 0) {
      if (room == 0 || groups.back().front().device.has_value() != rest.device.has_value()) {
        groups.emplace_back();
        room = kPoolBlockBytes;
      }
      CopyPair part = rest;
      part.bytes = std::min(rest.bytes, room);
      groups.back().push_back(part);
      room -= part.bytes;
      rest.on_host += part.bytes;
      rest.other += part.bytes;
      rest.bytes -= part.bytes;
    }
  }
  return groups;
}

/// Returns the tensors of a group, for errors.
std::string NamesOf(const std::vector<CopyPair>& group) {
  const std::string first(group.front().name);
  const std::string last(group.back().name);
  return first == last ? "tensor \"" + first + "\""
                       : "tensors \"" + first + "\" to \"" + last + "\"";
}

void CopyOnHost(Direction direction, const std::vector<CopyPair>& group) {
  const bool out = direction == Direction::kToHost;
  for (const CopyPair& part : group) {
    StreamCopy({out ? part.other : part.on_host, part.bytes}, out ? part.on_host : part.other);
  }
}

Status CopyByBlock(Direction direction, CudaDevices& devices, const std::vector<CopyPair>& group,
                   BufferPool& pool) {
  VARVE_ASSIGN_OR_RETURN(const BufferPool::Lease block, pool.Acquire());
  block.Pin(devices, *group.front().device);
  const bool out = direction == Direction::kToHost;
  std::vector<DeviceMove> moves;
  std::byte* place = block.data();
  for (const CopyPair& part : group) {
    DeviceMove move;
    move.device = *part.device;
    move.on_device = part.other;
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

Status CopyPairs(Direction direction, std::span<const CopyPair> pairs, BufferPool& pool,
                 int threads) {
  CudaDevices* devices = nullptr;
  std::set<std::pair<int, void*>> seen;
  for (const CopyPair& pair : pairs) {
    if (pair.device && seen.emplace(*pair.device, pair.stream).second) {
      VARVE_ASSIGN_OR_RETURN(devices, CudaDevices::Get());
      VARVE_RETURN_IF_ERROR(devices->After(direction, *pair.device, pair.stream));
    }
  }
  const auto groups = GroupsOf(pairs);
  const int cores =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMostCopyThreads);
  return RunThreads(groups.size(), threads > 0 ? threads : cores, {}, [&](std::size_t i) -> Status {
    if (!groups[i].front().device) {
      CopyOnHost(direction, groups[i]);
      return Status::Ok();
    }
    Status copied = CopyByBlock(direction, *devices, groups[i], pool);
    if (!copied.ok() && !groups[i].front().name.empty()) {
      copied = copied.Annotate(NamesOf(groups[i]));
    }
    return copied;
  });
}

std::string DeviceProblem() {
  const auto devices = CudaDevices::Get();
  return devices.ok() ? std::string() : devices.status().message();
}

}  // namespace varve
