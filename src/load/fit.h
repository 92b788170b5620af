/// Targets of another size than the stored tensor (LoadOptions::fit).
#pragma once

#include <string_view>

#include "varve/checkpoint.h"

namespace varve {

/// Returns true where a target differs from the stored tensor in sizes alone, not in the number of
/// dimensions: fit=kOverlap can fill the part that both have.
bool DiffersInSizes(const TensorMetadata& stored, const TargetTensor& target);

/// Returns the part of a target that a stored tensor of `shape` has too, as a target that fits it:
/// of the stored shape, with the same memory. Its box is empty where the target lies outside.
/// Requires: DiffersInSizes.
TargetTensor OverlapWith(const Dims& shape, TargetTensor target);

}  // namespace varve
