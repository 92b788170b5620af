/// Where the elements of a tensor come from: what all code that reads a TensorSource asks of it.
#pragma once

#include <optional>

#include "device/cuda_reader.h"
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

/// Sees to it that what `reader` copies of the state is what the work queued so far makes of it.
/// A null `reader` cannot copy anything. Errors: InvalidArgument naming a tensor on a device, where
/// nothing copies from devices; CudaReader::After's.
Status AwaitDeviceWork(const State& state, CudaReader* reader);

}  // namespace varve
