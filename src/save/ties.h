/// Tied tensors: one piece of memory that a state holds under several names.
#pragma once

#include "plan/save_plan.h"
#include "varve/checkpoint.h"

namespace varve {

/// Fills PlannedTensor::tied_to of the items of `plan`, which was made of `state`. Shards are tied
/// when they have the same address, device, strides, dtype, whole shape and box. The tied shard
/// with the lowest name stands for all, so that ranks choose alike.
void FindTies(const State& state, LocalPlan* plan);

}  // namespace varve
