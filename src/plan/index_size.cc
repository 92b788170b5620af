#include "plan/index_size.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/checked.h"
#include "base/name_set.h"
#include "tensor/box.h"

namespace varve {
namespace {

constexpr std::uint64_t kFileNameBytes = 48;  // Of a data file, see DataFileName.

}  // namespace

ManifestCounts CountIndex(const std::vector<LocalPlan>& plans, const SettledPlan& settled,
                          std::uint64_t block_bytes, const std::vector<SharedSpec>& hidden) {
  ManifestCounts counts{.files = plans.size(), .name_bytes = plans.size() * kFileNameBytes};
  NameSet tensors(plans.empty() ? 0 : plans[0].tensors.size());
  std::uint64_t variants = 0;
  const auto count_name = [&](const PlannedTensor& item) {
    if (tensors.Insert(item.fqn())) {
      counts.name_bytes += item.fqn().size();
      counts.dims += item.shape().size();
    }
  };
  for (const SharedSpec& spec : hidden) {
    counts.name_bytes += spec->fqn.size();
    counts.dims += spec->shape.size();
  }
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    const RankAssignment& assignment = settled.ranks[rank];
    std::uint64_t bytes = assignment.structure.size();
    for (const ChunkAssignment& chunk : assignment.chunks) {
      const PlannedTensor& item = plans[rank].tensors[chunk.item];
      const Dims& sizes = chunk.BoxIn(plans[rank]).sizes;
      const std::uint64_t times = chunk.member == ChunkAssignment::kAllMembers ? item.alike : 1;
      bytes += Volume(sizes) * ItemSize(item.dtype()) * times;
      counts.dims += 2 * sizes.size() * times;
      counts.chunks += times;
      count_name(item);
    }
    for (const VariantAssignment& variant : assignment.tensor_variants) {
      const PlannedTensor& item = plans[rank].tensors[variant.item];
      counts.name_bytes += NameInFile(item, variant).size();
      counts.dims += item.shape().size();
      ++variants;
    }
    for (const VariantAssignment& variant : assignment.object_variants) {
      counts.name_bytes += NameInFile(plans[rank].objects[variant.item], variant).size();
    }
    std::unordered_map<std::uint32_t, std::uint64_t> chunks_of;  // Looked up only.
    if (!assignment.aliases.empty()) {
      for (const ChunkAssignment& chunk : assignment.chunks) {
        ++chunks_of[chunk.item];
      }
    }
    for (const std::uint32_t alias : assignment.aliases) {
      const PlannedTensor& item = plans[rank].tensors[alias];
      const std::uint64_t chunks = chunks_of[*item.tied_to];
      counts.chunks += chunks;
      counts.dims += 2 * chunks * item.shape().size();
      count_name(item);
    }
    for (const std::uint32_t object : assignment.objects) {
      bytes += plans[rank].objects[object].bytes;
      counts.name_bytes += plans[rank].objects[object].fqn.size();
    }
    counts.objects += assignment.objects.size();
    counts.blocks += DivideUp(bytes, block_bytes);
  }
  counts.tensors = tensors.size() + hidden.size() + variants;
  return counts;
}

namespace {

// See EncodeHeader. The shortest entry with a hash is `,"":{"dtype":"U8","shape":[],
// "data_offsets":[0,0]}` and 32 digits; `,"":{"saved_offsets":[]}` and `,"":{"fqn":"","dtype":"",
// "shape":[],"offsets":[],"sizes":[]}` come with shards, in strings that quote them.
constexpr std::uint64_t kEntryBytes = 82;
constexpr std::uint64_t kPlaceBytes = 24;
constexpr std::uint64_t kGeometryBytes = 62;
constexpr std::uint64_t kValueBytes = 8;
constexpr std::uint64_t kTimesNamed = 4;  // At most, by all of these.

}  // namespace

std::uint64_t HeaderBytesAtLeast(const LocalPlan& plan, const RankAssignment& assignment) {
  const bool sharded = std::any_of(
      assignment.chunks.begin(), assignment.chunks.end(), [&](const ChunkAssignment& chunk) {
        return chunk.BoxIn(plan).sizes != plan.tensors[chunk.item].shape();
      });
  std::uint64_t bytes = 0;
  for (const ChunkAssignment& chunk : assignment.chunks) {
    const PlannedTensor& item = plan.tensors[chunk.item];
    bytes += kEntryBytes + item.fqn().size();
    bytes += sharded ? kPlaceBytes + item.fqn().size() : 0;
    bytes += chunk.BoxIn(plan).sizes != item.shape() ? kGeometryBytes + 2 * item.fqn().size() : 0;
  }
  for (const std::uint32_t alias : assignment.aliases) {
    bytes +=
        plan.tensors[alias].fqn().size() + plan.tensors[*plan.tensors[alias].tied_to].fqn().size();
  }
  for (const std::uint32_t object : assignment.objects) {
    bytes += kValueBytes + plan.objects[object].fqn.size();
  }
  return bytes;
}

namespace {

std::string Counts(const RankAssignment& assignment) {
  return std::to_string(assignment.chunks.size()) + " pieces of tensors and " +
         std::to_string(assignment.objects.size()) + " plain values";
}

Status TooLarge(std::uint64_t bytes, const std::string& counts) {
  return InvalidArgument("a header of at least " + std::to_string(bytes) + " bytes, for " + counts +
                         "," + std::string(kTooLargeHeader));
}

}  // namespace

Status CheckOwnHeaderSize(const LocalPlan& plan, int writers) {
  // The lower bound is at most this, which needs no assignment.
  std::uint64_t most = 0;
  for (const PlannedTensor& item : plan.tensors) {
    most += kEntryBytes + kPlaceBytes + kGeometryBytes + kTimesNamed * item.fqn().size();
    most += item.tied_to ? plan.tensors[*item.tied_to].fqn().size() : 0;
  }
  for (const ObjectItem& item : plan.objects) {
    most += kValueBytes + item.fqn.size();
  }
  if (most <= kMaxHeaderBytes) {
    return Status::Ok();
  }
  // Values of all ranks may be written by another one, and what several hold by any of them.
  const RankAssignment all = AssignEverything(plan);
  const std::uint64_t bytes =
      HeaderBytesAtLeast(plan, all) / static_cast<std::uint64_t>(std::max(writers, 1));
  if (bytes <= kMaxHeaderBytes) {
    return Status::Ok();
  }
  return TooLarge(bytes, Counts(all))
      .Annotate(writers > 1 ? "the data file of a rank" : "the data file");
}

}  // namespace varve
