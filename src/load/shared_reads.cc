// A node is the system that keeps a page cache: its ranks find there what one of them has read.

#include "load/shared_reads.h"

#include <cstddef>
#include <fstream>
#include <map>
#include <tuple>
#include <utility>

#include "base/checksum.h"
#include "plan/load_plan.h"

namespace varve {
namespace {

/// To read less takes no longer than to agree about it.
constexpr std::uint64_t kLeastBytes = std::uint64_t{16} << 20;
/// Checksum blocks of our own files: less than one between two parts is read with them.
constexpr std::uint64_t kUsualBlockBytes = std::uint64_t{1} << 20;

std::string ThisNode() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return boot;
}

/// Returns the bytes from the first to the last of a part of a chunk, without gaps of more than
/// `max_gap`. The part is not empty.
std::uint64_t BytesWithGaps(const Box& chunk, const Box& part, std::uint64_t item_bytes,
                            std::uint64_t max_gap) {
  std::uint64_t step = item_bytes;  // Of one index of the dimension, in the chunk.
  std::uint64_t read = item_bytes;  // Of that.
  for (std::size_t d = part.sizes.size(); d-- > 0;) {
    const std::uint64_t count = part.sizes[d];
    read = step - read <= max_gap ? (count - 1) * step + read : count * read;
    step *= chunk.sizes[d];
  }
  return read;
}

}  // namespace

ReadNeed NeedOf(const Metadata& metadata, std::span<const TargetTensor> targets,
                const LoadOptions& options) {
  std::vector<LoadItem> items;
  items.reserve(targets.size());
  for (const TargetTensor& target : targets) {
    if (const TensorMetadata* const stored = metadata.FindTensor(target.fqn); stored != nullptr) {
      items.push_back({target.fqn, stored->dtype, stored->shape, target.box});
    }
  }
  const auto reads = PlanLoad(metadata, items);
  if (!reads.ok()) {
    return {};  // The load will say so.
  }
  const std::uint64_t max_gap =
      metadata.format == Format::kVarve ? kUsualBlockBytes : options.max_gap_bytes;
  std::vector<std::uint64_t> parts;
  ReadNeed need;
  for (const PlannedRead& read : *reads) {
    const TensorMetadata& tensor = metadata.tensors[read.tensor];
    const Box& common = read.common;
    parts.insert(parts.end(), {read.tensor, read.chunk});
    parts.insert(parts.end(), common.offsets.begin(), common.offsets.end());
    parts.insert(parts.end(), common.sizes.begin(), common.sizes.end());
    need.bytes +=
        BytesWithGaps(tensor.chunks[read.chunk].box, common, ItemSize(tensor.dtype), max_gap);
  }
  if (need.bytes >= kLeastBytes) {
    need.node = ThisNode();
    need.parts = Xxh3(std::as_bytes(std::span(parts)));
  }
  return need;
}

std::vector<SharedBy> ShareReads(std::span<const ReadNeed> needs, std::uint64_t wanted_bytes) {
  std::map<std::string_view, std::uint64_t> bytes_of;
  for (const ReadNeed& need : needs) {
    bytes_of[need.node] += need.bytes;
  }
  std::map<std::pair<std::string_view, Hash128>, std::vector<std::size_t>> groups;
  for (std::size_t rank = 0; rank < needs.size(); ++rank) {
    const ReadNeed& need = needs[rank];
    if (!need.node.empty()) {
      const bool all = bytes_of[need.node] > wanted_bytes / 10 * 11;
      groups[{need.node, all ? Hash128{} : need.parts}].push_back(rank);
    }
  }
  std::vector<SharedBy> shared(needs.size());
  for (const auto& [key, ranks] : groups) {
    for (std::size_t place = 0; place < ranks.size(); ++place) {
      shared[ranks[place]] = {static_cast<std::uint32_t>(place),
                              static_cast<std::uint32_t>(ranks.size())};
    }
  }
  return shared;
}

}  // namespace varve
