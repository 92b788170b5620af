/// Targets of a load that are on devices.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "varve/checkpoint.h"
#include "varve/options.h"
#include "varve/status.h"

namespace varve {

/// Counts of one load: bytes that were read, and those of them that were copied to devices.
struct ReadToDevice {
  std::uint64_t bytes_read = 0;
  std::uint64_t device_bytes = 0;
  double device_seconds = 0;  ///< For these; the threads' mean.
};

/// Orders what is copied to targets behind the work that is queued on their streams. Errors:
/// CudaDevices::Get's and After's, naming the tensor.
Status AwaitDeviceWork(std::span<const TargetTensor> targets);

/// Returns the CUDA device that a target is on; nothing for host memory.
std::optional<int> DeviceOf(const TargetTensor& target);

/// Reads a target on a device by way of host memory: for what is to be changed after it was read.
/// Errors: as CheckpointReader::ReadTensors.
Result<ReadToDevice> ReadByHost(CheckpointReader& reader, const TargetTensor& target,
                                const LoadOptions& options);

}  // namespace varve
