/// Tied tensors: one piece of memory that a state holds under several names.
#pragma once

#include "plan/save_plan.h"
#include "varve/checkpoint.h"

namespace varve {

/// Fills PlannedTensor::part_of and tied_to of the items of `plan`, which was made of `state`.
/// Shards are tied when they have the same address, device, strides, dtype, whole shape and box.
/// The tied shard with the lowest name stands for all, so that ranks choose alike. A storage of a
/// value (SourceObject::storages) is tied only where all storages of two like values are, each to
/// the one of its number: an archive needs its own. Errors: InvalidArgument for a storage that the
/// state does not have whole, or that two values have.
Status FindTies(const State& state, LocalPlan* plan);

}  // namespace varve
