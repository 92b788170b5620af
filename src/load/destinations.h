/// Destinations of a load whose memory overlaps.
#pragma once

#include <span>

#include "tensor/region.h"
#include "varve/checkpoint.h"
#include "varve/options.h"
#include "varve/status.h"

namespace varve {

/// Refuses targets that could not hold what is stored: one whose elements share memory, and two
/// that share memory while different values are stored for it. Equal values are fine, as for a tied
/// parameter under two names: proven by the index where it can (same bytes of a file, same content
/// hash), else by reading both into scratch memory of twice their size. Every target is of a stored
/// shape, and of the stored dtype or one that `options` let a load convert to. Writes to no target.
/// Errors: InvalidArgument naming the tensors; those of reading.
Status CheckDestinations(CheckpointReader& reader, std::span<const TargetTensor> targets,
                         const LoadOptions& options);

/// Returns the memory of a target. Errors: InvalidArgument when there is none, when the number of
/// strides is wrong, and when elements share memory.
Result<StridedMemory> MemoryOf(const TargetTensor& target);

}  // namespace varve
