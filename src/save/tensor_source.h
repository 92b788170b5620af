/// Where the elements of a tensor come from: what all code that reads a TensorSource asks of it.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>

#include "device/cuda_devices.h"
#include "pipeline/file_writer.h"
#include "tensor/region.h"
#include "varve/checkpoint.h"
#include "varve/status.h"

namespace varve {

/// Returns true for a source that makes its bytes.
inline bool IsProduced(const TensorSource& source) {
  return std::holds_alternative<Producer>(source);
}

/// Returns the CUDA device that the elements are on; nothing for host memory and producers.
std::optional<int> DeviceOf(const TensorSource& source);

/// Returns the address of the elements, or the one that stands for them; null where there is none.
const void* AddressOf(const TensorSource& source);

/// Returns memory that is `box` of a tensor. It is read through this and never written.
/// Requires: not produced.
StridedMemory MemoryOf(const TensorSource& source, DType dtype, const Box& box);

/// Checks that elements of `box` can be had from it. Errors: InvalidArgument for strides that do
/// not fit the box, and where there is neither memory nor a function to produce it.
Status CheckSource(const TensorSource& source, const Box& box);

/// Makes `segment` read the elements `part` of those that `source` holds, which are `box`,
/// row-major. Requires: CheckSource, and a `part` that is not empty. Errors: InvalidArgument for a
/// part of a tensor that is produced.
Status ReadFrom(const TensorSource& source, DType dtype, const Box& box, const Box& part,
                FileSegment* segment);

/// Orders copies from devices behind the work that is queued on their streams, once for each
/// stream.
class DeviceWaits {
 public:
  /// Errors: CudaDevices::Get's and After's, naming the tensor.
  Status Add(const TensorSource& source, const std::string& fqn);

 private:
  std::set<std::pair<int, void*>> seen_;
};

/// Sees to it that what is copied of the state from now on is what the work queued so far makes of
/// it. Errors: CudaDevices::Get's and After's, naming a tensor; InvalidArgument for one on a device
/// where that is not `allowed`.
Status AwaitDeviceWork(const State& state, bool allowed = true);

/// Returns a device that some tensor is on; nothing when all are in host memory.
std::optional<int> DeviceOf(const State& state);

}  // namespace varve
