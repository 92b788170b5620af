/// Tied tensors: one piece of memory that a state holds under several names.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan/save_plan.h"
#include "varve/checkpoint.h"

namespace varve {

/// Fills WriteItem::tied_to of the items of `plan`, which was made of `state`. Shards are tied when
/// they have the same address, device, strides, dtype, whole shape and box. Of tied shards the one
/// with the lowest name stands for all, so that ranks choose alike.
void FindTies(const State& state, LocalPlan* plan);

/// Removes from `missing` each name of `targets` whose memory is filled by `filled`, under other
/// names: a checkpoint that has only one of two tied tensors lacks nothing.
void DropTiedNames(std::span<const TargetTensor> targets, std::span<const TargetTensor> filled,
                   std::vector<std::string>* missing);

}  // namespace varve
