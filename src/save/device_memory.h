/// Tensors of a state that are on CUDA devices.
#pragma once

#include <optional>

#include "device/cuda_reader.h"
#include "varve/checkpoint.h"
#include "varve/status.h"

namespace varve {

/// The device that a tensor is on; nothing for one in host memory.
inline std::optional<int> DeviceOf(const SourceTensor& tensor) {
  return tensor.cuda ? std::optional(tensor.cuda->device) : std::nullopt;
}

/// Sees to it that what `reader` copies of the state is what the work queued so far makes of it.
/// A null `reader` cannot copy anything. Errors: InvalidArgument naming a tensor on a device, where
/// nothing copies from devices; CudaReader::After's.
Status AwaitDeviceWork(const State& state, CudaReader* reader);

}  // namespace varve
