/// Fingerprints of tensor memory, by which ranks find replicas that differ.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "device/device_move.h"
#include "plan/replica_pattern.h"
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

/// Appends the moves that bring `ranges` of a region on a device to `out`, one after the other.
void AppendSampleMoves(const Region& region, int device, std::span<const ByteRange> ranges,
                       std::byte* out, std::vector<DeviceMove>* moves);

/// A shard, and the number that its fingerprint goes to.
struct ShardToHash {
  Region region;
  std::string_view name;        ///< Of the tensor; outlives FillFingerprints.
  std::optional<int> device{};  ///< The CUDA device that the region's memory is on.
  std::uint64_t* fingerprint = nullptr;
};

/// Fills the fingerprints of all shards. Samples on devices are read when the work queued before
/// DeviceWaits has been done, and many of them by one call. Errors: CudaDevices::Move's, naming
/// the first tensor that they may be about.
Status FillFingerprints(std::span<const ShardToHash> shards, CheckReplicas check);

/// Marks the shards, of those without a fingerprint, that are at most an even part of their tensor
/// for each of `ranks` ranks: no other rank is expected to hold them (kUnhashed).
void LeaveOutFingerprints(int ranks, LocalPlan* plan);
/// Takes these marks away.
void WantAllFingerprints(LocalPlan* plan);

/// Fills the fingerprints that items of `plan` do not have yet and that are not left out;
/// MakeLocalPlan made it of `state`. Of all items where `shared` is null, else of those that other
/// ranks hold too. They stay unknown for tensors that are produced, and for empty shards. Errors:
/// FillFingerprints's.
Status AddFingerprints(const State& state, CheckReplicas check, LocalPlan* plan,
                       const ComparedItems* shared = nullptr);

}  // namespace varve
