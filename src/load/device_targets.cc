#include "load/device_targets.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "base/time_source.h"
#include "device/cuda_devices.h"
#include "load/destinations.h"
#include "pipeline/buffer_pool.h"
#include "pipeline/device_fetch.h"
#include "tensor/box.h"
#include "tensor/region.h"

namespace varve {

Status AwaitDeviceWork(std::span<const TargetTensor> targets) {
  std::set<std::pair<int, void*>> seen;
  for (const TargetTensor& target : targets) {
    if (target.cuda && seen.emplace(target.cuda->device, target.cuda->stream).second) {
      const auto await = [&]() -> Status {
        VARVE_ASSIGN_OR_RETURN(CudaDevices* const devices, CudaDevices::Get());
        return devices->After(Direction::kToDevice, target.cuda->device, target.cuda->stream);
      };
      VARVE_RETURN_IF_ERROR(await().Annotate("tensor \"" + target.fqn + "\""));
    }
  }
  return Status::Ok();
}

std::optional<int> DeviceOf(const TargetTensor& target) {
  return target.cuda ? std::optional(target.cuda->device) : std::nullopt;
}

namespace {

/// Copies all bytes of a region through a block that is registered with the driver.
Status PutOnDevice(std::span<const std::byte> bytes, const Region& region, int device) {
  VARVE_ASSIGN_OR_RETURN(CudaDevices* const devices, CudaDevices::Get());
  VARVE_ASSIGN_OR_RETURN(const auto block, BufferPool::Shared().Acquire());
  block.Pin(*devices, device);
  const std::uint64_t most = kPoolBlockBytes / region.item_size() * region.item_size();
  for (std::uint64_t at = 0; at < bytes.size(); at += most) {
    const auto step = bytes.subspan(at, std::min(most, bytes.size() - at));
    std::memcpy(block.data(), step.data(), step.size());
    VARVE_RETURN_IF_ERROR(CopyToDevice(region, device, at, {block.data(), step.size()}));
  }
  return Status::Ok();
}

}  // namespace

Result<ReadToDevice> ReadByHost(CheckpointReader& reader, const TargetTensor& target,
                                const LoadOptions& options) {
  VARVE_ASSIGN_OR_RETURN(const StridedMemory memory, MemoryOf(target));
  std::vector<std::byte> bytes(Volume(target.box.sizes) * memory.item_size);
  TargetTensor host = target;
  host.data = bytes.data();
  host.strides.clear();
  host.cuda.reset();
  ReadToDevice read;
  VARVE_ASSIGN_OR_RETURN(read.bytes_read, reader.ReadTensors({&host, 1}, options));
  const TimePoint begin = Now();
  VARVE_RETURN_IF_ERROR(
      PutOnDevice(bytes, Region(target.box, memory, target.box), target.cuda->device)
          .Annotate("tensor \"" + target.fqn + "\""));
  read.device_seconds = std::chrono::duration<double>(Now() - begin).count();
  read.device_bytes = bytes.size();
  return read;
}

}  // namespace varve
