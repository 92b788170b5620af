// A node is the system that keeps a page cache: its ranks find there what one of them has read.

#include "load/shared_reads.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <map>
#include <utility>

#include "base/checked.h"
#include "base/checksum.h"
#include "plan/load_plan.h"
#include "tensor/box.h"

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

/// The part of a file that a read touches, by the index alone: files are opened later.
struct Touched {
  ByteRange range;          ///< From the first to the last byte.
  std::uint64_t bytes = 0;  ///< In it, without gaps of more than the largest that is read too.
};

/// Returns it for a part, not empty, of a chunk. A compressed chunk is read whole.
Touched TouchedBy(const Box& part, const Chunk& chunk, std::uint64_t item_bytes,
                  std::uint64_t max_gap) {
  const Extent& extent = chunk.extent;
  const std::uint64_t stored = extent.end - extent.begin;
  if (!chunk.strides.empty() || stored < Volume(chunk.box.sizes) * item_bytes) {
    return {{extent.begin, extent.end}, stored};
  }
  std::uint64_t step = item_bytes;  // Of one index of the dimension, in the chunk.
  std::uint64_t bytes = item_bytes;
  std::uint64_t first = 0;
  std::uint64_t span = item_bytes;
  for (std::size_t d = part.sizes.size(); d-- > 0;) {
    const std::uint64_t count = part.sizes[d];
    bytes = step - bytes <= max_gap ? (count - 1) * step + bytes : count * bytes;
    first += (part.offsets[d] - chunk.box.offsets[d]) * step;
    span += (count - 1) * step;
    step *= chunk.box.sizes[d];
  }
  return {{extent.begin + first, extent.begin + first + span}, bytes};
}

/// Returns the bytes of whole blocks that hold the ranges of a file, which are by their begin.
std::uint64_t BytesOfBlocks(const std::vector<ByteRange>& ranges, std::uint64_t block_bytes) {
  std::uint64_t bytes = 0;
  std::uint64_t end = 0;
  for (const ByteRange& range : ranges) {
    const std::uint64_t from = std::max(end, range.begin / block_bytes * block_bytes);
    const std::uint64_t to = RoundUp(range.end, block_bytes);
    bytes += to > from ? to - from : 0;
    end = std::max(end, to);
  }
  return bytes;
}

}  // namespace

ReadNeed NeedOf(const Metadata& metadata, std::span<const TargetTensor> targets,
                const LoadOptions& options) {
  const auto several = metadata.SeveralValues();
  std::vector<LoadItem> items;
  items.reserve(targets.size());
  for (const TargetTensor& target : targets) {
    const TensorMetadata* const stored = metadata.FindTensor(target.fqn);
    if (stored != nullptr && !several.contains(target.fqn)) {  // Of those a rank reads its own.
      items.push_back({target.fqn, stored->dtype, stored->shape, target.box});
    }
  }
  const auto reads = PlanLoad(metadata, items);
  if (!reads.ok()) {
    return {};  // The load will say so.
  }
  const bool ours = metadata.format == Format::kVarve;
  std::vector<std::uint64_t> parts;
  std::map<std::uint32_t, std::vector<ByteRange>> ranges;
  ReadNeed need;
  need.tensors.assign(metadata.tensors.size() / 8 + 1, '\0');
  for (const PlannedRead& read : *reads) {
    const TensorMetadata& tensor = metadata.tensors[read.tensor];
    const Chunk& chunk = tensor.chunks[read.chunk];
    const Touched touched = TouchedBy(read.common, chunk, ItemSize(tensor.dtype),
                                      ours ? kUsualBlockBytes : options.max_gap_bytes);
    if (touched.bytes == touched.range.end - touched.range.begin) {
      ranges[chunk.extent.file].push_back(touched.range);
    } else {
      need.bytes += touched.bytes;
    }
    parts.insert(parts.end(), {read.tensor, chunk.extent.file, chunk.extent.begin});
    parts.insert(parts.end(), read.common.offsets.begin(), read.common.offsets.end());
    parts.insert(parts.end(), read.common.sizes.begin(), read.common.sizes.end());
    need.tensors[read.tensor / 8] |= static_cast<char>(1 << read.tensor % 8);
  }
  for (auto& [file, of_file] : ranges) {
    std::sort(of_file.begin(), of_file.end(),
              [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
    need.bytes += BytesOfBlocks(of_file, ours ? kUsualBlockBytes : 1);
  }
  if (need.bytes < kLeastBytes) {
    return {};
  }
  need.node = ThisNode();
  need.parts = Xxh3(std::as_bytes(std::span(parts)));
  return need;
}

std::vector<SharedBy> ShareReads(const Metadata& metadata, std::span<const ReadNeed> needs) {
  struct Node {
    std::uint64_t bytes = 0;  // That its ranks read, each for itself.
    std::string tensors;      // That some of them needs.
    bool reads_twice = false;
  };
  std::map<std::string_view, Node> nodes;
  for (const ReadNeed& need : needs) {
    Node& node = nodes[need.node];
    node.bytes += need.bytes;
    node.tensors.resize(std::max(node.tensors.size(), need.tensors.size()));
    for (std::size_t i = 0; i < need.tensors.size(); ++i) {
      node.tensors[i] |= need.tensors[i];
    }
  }
  for (auto& [name, node] : nodes) {
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < std::min(metadata.tensors.size(), node.tensors.size() * 8); ++i) {
      const TensorMetadata& tensor = metadata.tensors[i];
      all += (node.tensors[i / 8] >> i % 8 & 1) != 0 ? Volume(tensor.shape) * ItemSize(tensor.dtype)
                                                     : 0;
    }
    node.reads_twice = node.bytes > all / 10 * 11;
  }
  std::map<std::pair<std::string_view, Hash128>, std::vector<std::size_t>> groups;
  for (std::size_t rank = 0; rank < needs.size(); ++rank) {
    const ReadNeed& need = needs[rank];
    if (!need.node.empty()) {
      groups[{need.node, nodes[need.node].reads_twice ? Hash128{} : need.parts}].push_back(rank);
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
