/// Targets that share their memory under several names: a tie of the destination.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "varve/checkpoint.h"

namespace varve {

/// Removes from `missing` each name of `targets` whose memory is filled by `filled`, under other
/// names: a checkpoint that has only one of two tied tensors lacks nothing.
void DropTiedNames(std::span<const TargetTensor> targets, std::span<const TargetTensor> filled,
                   std::vector<std::string>* missing);

}  // namespace varve
