/// Fingerprints of tensor memory, by which ranks find replicas that differ.
#pragma once

#include <cstdint>
#include <span>

#include "plan/save_plan.h"
#include "tensor/region.h"
#include "varve/checkpoint.h"
#include "varve/hash.h"
#include "varve/options.h"

namespace varve {

/// Returns the XXH3 of the bytes of `ranges`, one after the other. Ranges count row-major bytes of
/// the region's chunk, whatever the strides of its memory, and must not cut an element.
Hash128 HashRanges(const Region& region, std::span<const ByteRange> ranges);

/// Returns the fingerprint of a shard. Equal shards have equal ones on all ranks that check alike.
std::uint64_t Fingerprint(const Region& region, CheckReplicas check);

/// Fills the fingerprint of each item of `plan`, which MakeLocalPlan made of `state`. They stay
/// unknown for shards on a device, for tensors that are produced, and for empty shards.
void AddFingerprints(const State& state, CheckReplicas check, LocalPlan* plan);

}  // namespace varve
