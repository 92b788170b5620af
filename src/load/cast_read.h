/// Reading tensors into memory of another floating-point type.
#pragma once

#include <span>

#include "load/destinations.h"
#include "varve/checkpoint.h"
#include "varve/options.h"
#include "varve/status.h"

namespace varve {

/// Returns true when a load with LoadOptions::cast fills `target` from `stored`: same shape,
/// another dtype, and both dtypes are among float16, bfloat16, float32 and float64.
bool NeedsCast(const TensorMetadata& stored, const TargetTensor& target);

/// Fills all targets as CheckpointReader::ReadTensors does, those that need a cast after the
/// others: in batches of at most 256 MiB of stored bytes, converted as Cast does. Errors: as
/// ReadTensors; while a batch is converted, the message says that targets before it hold new
/// values.
Result<ReadToDevice> ReadCasting(CheckpointReader& reader, std::span<const TargetTensor> targets,
                                 LoadOptions options);

}  // namespace varve
