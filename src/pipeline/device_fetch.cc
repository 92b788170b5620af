#include "pipeline/device_fetch.h"

#include <algorithm>
#include <vector>

#include "device/cuda_devices.h"

namespace varve {
namespace {

/// Calls `visit(segment, at, begin, bytes)` for the part of each segment on a device: `bytes` from
/// byte `at` of the segment on are the bytes from `begin` on of the stretch.
template <class Visit>
void ForEachOnDevice(std::span<const FileSegment> segments, std::uint64_t at, std::uint64_t bytes,
                     Visit visit) {
  std::uint64_t begin = 0;
  for (const FileSegment& segment : segments) {
    if (begin >= bytes) {
      return;
    }
    const std::uint64_t step = std::min(segment.bytes - at, bytes - begin);
    if (segment.device && segment.region && step > 0) {
      visit(segment, at, begin, step);
    }
    begin += step;
    at = 0;
  }
}

}  // namespace

std::uint64_t DeviceBytesIn(std::span<const FileSegment> segments, std::uint64_t at,
                            std::uint64_t bytes) {
  std::uint64_t sum = 0;
  ForEachOnDevice(
      segments, at, bytes,
      [&](const FileSegment&, std::uint64_t, std::uint64_t, std::uint64_t step) { sum += step; });
  return sum;
}

std::optional<int> FirstDevice(std::span<const FileSegment> segments) {
  const auto found = std::find_if(segments.begin(), segments.end(),
                                  [](const FileSegment& segment) { return segment.device; });
  return found == segments.end() ? std::nullopt : found->device;
}

Status DeviceFetch::Fetch(std::span<const FileSegment> segments, std::uint64_t at,
                          std::span<std::byte> out) {
  std::vector<DeviceMove> moves;
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  std::uint64_t bytes = 0;
  ForEachOnDevice(
      segments, at, out.size(),
      [&](const FileSegment& segment, std::uint64_t from, std::uint64_t begin, std::uint64_t step) {
        AppendMoves(*segment.region, *segment.device, segment.begin + from,
                    out.subspan(begin, step), &moves);
        first = bytes == 0 ? segment.owner : first;
        last = segment.owner;
        bytes += step;
      });
  if (moves.empty()) {
    return Status::Ok();
  }
  const auto fetch = [&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(CudaDevices* const devices, CudaDevices::Get());
    VARVE_RETURN_IF_ERROR(devices->Move(Direction::kToHost, moves));
    Count(*devices, out, bytes);
    return Status::Ok();
  };
  Status status = fetch();
  if (status.ok() || !name_of_) {
    return status;
  }
  std::string names = "tensor \"" + name_of_(first) + "\"";
  if (last != first) {
    names = "tensors \"" + name_of_(first) + "\" to \"" + name_of_(last) + "\"";
  }
  return status.Annotate(names);
}

Status DeviceFetch::Produce(const FileSegment& segment, std::uint64_t at,
                            std::span<std::byte> out) {
  Status made = segment.produce(at, out);
  if (!segment.device) {
    return made;
  }
  if (!made.ok()) {
    return name_of_ ? made.Annotate("tensor \"" + name_of_(segment.owner) + "\"") : made;
  }
  VARVE_ASSIGN_OR_RETURN(const CudaDevices* const devices, CudaDevices::Get());
  Count(*devices, out, out.size());
  return made;
}

/// Counts bytes of `out` that have come from a device.
void DeviceFetch::Count(const CudaDevices& devices, std::span<const std::byte> out,
                        std::uint64_t bytes) {
  device_bytes_ += bytes;
  pageable_bytes_ += devices.IsRegistered(out.data(), out.size()) ? 0 : bytes;
}

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

namespace {

Status CopyPart(Direction direction, const Region& region, int device, std::uint64_t at,
                std::span<const std::byte> bytes) {
  std::vector<DeviceMove> moves;
  AppendMoves(region, device, at, bytes, &moves);
  VARVE_ASSIGN_OR_RETURN(CudaDevices* const devices, CudaDevices::Get());
  return devices->Move(direction, moves);
}

}  // namespace

Status CopyFromDevice(const Region& region, int device, std::uint64_t at,
                      std::span<std::byte> out) {
  return CopyPart(Direction::kToHost, region, device, at, out);
}

Status CopyToDevice(const Region& region, int device, std::uint64_t at,
                    std::span<const std::byte> bytes) {
  return CopyPart(Direction::kToDevice, region, device, at, bytes);
}

}  // namespace varve
