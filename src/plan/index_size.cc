#include "plan/index_size.h"

#include <cstddef>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/checked.h"
#include "tensor/box.h"

namespace varve {
namespace {

constexpr std::uint64_t kFileNameBytes = 48;  // Of a data file, see DataFileName.

}  // namespace

ManifestCounts CountIndex(const std::vector<LocalPlan>& plans, const SettledPlan& settled,
                          std::uint64_t block_bytes) {
  ManifestCounts counts{.files = plans.size(), .name_bytes = plans.size() * kFileNameBytes};
  std::unordered_set<std::string_view> tensors;  // Membership only; its order is never seen.
  const auto count_name = [&](const WriteItem& item) {
    if (tensors.insert(item.fqn).second) {
      counts.name_bytes += item.fqn.size();
      counts.dims += item.shape.size();
    }
  };
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    const RankAssignment& assignment = settled.ranks[rank];
    std::uint64_t bytes = assignment.structure.size();
    for (const ChunkAssignment& chunk : assignment.chunks) {
      const WriteItem& item = plans[rank].tensors[chunk.item];
      bytes += Volume(chunk.box.sizes) * ItemSize(item.dtype);
      counts.dims += 2 * chunk.box.sizes.size();
      count_name(item);
    }
    std::unordered_map<std::uint32_t, std::uint64_t> chunks_of;  // Looked up only.
    for (const ChunkAssignment& chunk : assignment.chunks) {
      ++chunks_of[chunk.item];
    }
    for (const std::uint32_t alias : assignment.aliases) {
      const WriteItem& item = plans[rank].tensors[alias];
      const std::uint64_t chunks = chunks_of[*item.tied_to];
      counts.chunks += chunks;
      counts.dims += 2 * chunks * item.shape.size();
      count_name(item);
    }
    for (const std::uint32_t object : assignment.objects) {
      bytes += plans[rank].objects[object].bytes;
      counts.name_bytes += plans[rank].objects[object].fqn.size();
    }
    counts.chunks += assignment.chunks.size();
    counts.objects += assignment.objects.size();
    counts.blocks += DivideUp(bytes, block_bytes);
  }
  counts.tensors = tensors.size();
  return counts;
}

}  // namespace varve
