// A node is the system that keeps a page cache: its ranks find there what one of them has read.

#include "share/sharing.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "base/checked.h"
#include "base/checksum.h"
#include "coordinate/channel/connection.h"
#include "plan/load_plan.h"
#include "tensor/box.h"

namespace varve {
namespace {

/// To read less takes no longer than to agree about it.
constexpr std::uint64_t kLeastBytes = std::uint64_t{16} << 20;
/// Checksum blocks of our own files: less than one between two parts is read with them.
constexpr std::uint64_t kUsualBlockBytes = std::uint64_t{1} << 20;

/// Most nodes of which ranks read for each other: a rank has connections to one rank of each, as a
/// rule.
constexpr std::size_t kMostNodes = 32;
/// Most stretches of a checkpoint, and the least bytes of one.
constexpr std::uint64_t kMostStretches = 8192;
constexpr std::uint64_t kLeastStretch = std::uint64_t{8} << 20;

std::string ThisNode() {
  if (const char* const named = std::getenv("VARVE_NODE"); named != nullptr && *named != '\0') {
    return named;
  }
  return BootId();
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
/// Blocks begin with the file's data.
std::uint64_t BytesOfBlocks(const std::vector<ByteRange>& ranges, std::uint64_t data_begin,
                            std::uint64_t block_bytes) {
  std::uint64_t bytes = 0;
  std::uint64_t end = 0;
  for (const ByteRange& range : ranges) {
    const std::uint64_t begin = range.begin - std::min(range.begin, data_begin);
    const std::uint64_t from = std::max(end, begin / block_bytes * block_bytes);
    const std::uint64_t to = RoundUp(range.end - std::min(range.end, data_begin), block_bytes);
    bytes += to > from ? to - from : 0;
    end = std::max(end, to);
  }
  return bytes;
}

/// The files of a checkpoint, laid end to end and cut into stretches of one size.
class Stretches {
 public:
  explicit Stretches(const Metadata& metadata) {
    std::uint64_t bytes = 0;
    for (const DataFile& file : metadata.files) {
      begins_.push_back(bytes);
      bytes += file.size;
    }
    size_ = std::max(bytes / kMostStretches + 1, kLeastStretch);
    bits_ = static_cast<std::size_t>(bytes / size_) + 1;
  }

  /// Returns a bit for each stretch, none of them set.
  [[nodiscard]] std::string None() const { return std::string(bits_ / 8 + 1, '\0'); }

  void Set(std::string* bits, std::uint32_t file, ByteRange range) const {
    const std::uint64_t last = (begins_[file] + range.end - 1) / size_;
    for (std::uint64_t i = (begins_[file] + range.begin) / size_; i <= last && i < bits_; ++i) {
      (*bits)[i / 8] |= static_cast<char>(1 << i % 8);
    }
  }

  /// Returns how many bytes there are in the stretches that are set, at most.
  [[nodiscard]] std::uint64_t BytesIn(std::string_view bits) const {
    std::uint64_t count = 0;
    for (const char byte : bits) {
      count += static_cast<std::uint64_t>(std::popcount(static_cast<unsigned char>(byte)));
    }
    return count * size_;
  }

 private:
  std::uint64_t size_ = 0;
  std::size_t bits_ = 0;
  std::vector<std::uint64_t> begins_;  // By file.
};

/// The sum of the needs of several ranks.
struct Demand {
  std::uint64_t bytes = 0;  // That they read, each for itself.
  std::string stretches;    // Of which one of them needs some.

  void Add(const ReadNeed& need) {
    bytes += need.bytes;
    stretches.resize(std::max(stretches.size(), need.stretches.size()));
    for (std::size_t i = 0; i < need.stretches.size(); ++i) {
      stretches[i] |= need.stretches[i];
    }
  }
};

/// Returns true where reads of so many bytes are of some twice, as there are no more than `all`.
bool ReadsTwice(std::uint64_t bytes, std::uint64_t all) { return bytes > all / 10 * 11; }

}  // namespace

ReadNeed NeedOf(const Metadata& metadata, std::span<const TargetTensor> targets) {
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
  const Stretches stretches(metadata);
  need.stretches = stretches.None();
  for (const PlannedRead& read : *reads) {
    const TensorMetadata& tensor = metadata.tensors[read.tensor];
    const Chunk& chunk = tensor.chunks[read.chunk];
    const Touched touched = TouchedBy(read.common, chunk, ItemSize(tensor.dtype),
                                      ours ? kUsualBlockBytes : LoadOptions{}.max_gap_bytes);
    if (touched.bytes == touched.range.end - touched.range.begin) {
      ranges[chunk.extent.file].push_back(touched.range);
    } else {
      need.bytes += touched.bytes;
    }
    parts.insert(parts.end(), {read.tensor, chunk.extent.file, chunk.extent.begin});
    parts.insert(parts.end(), read.common.offsets.begin(), read.common.offsets.end());
    parts.insert(parts.end(), read.common.sizes.begin(), read.common.sizes.end());
    stretches.Set(&need.stretches, chunk.extent.file, touched.range);
  }
  for (auto& [file, of_file] : ranges) {
    std::sort(of_file.begin(), of_file.end(),
              [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
    need.bytes +=
        BytesOfBlocks(of_file, metadata.files[file].data_begin, ours ? kUsualBlockBytes : 1);
  }
  if (need.bytes < kLeastBytes) {
    return {};
  }
  need.node = ThisNode();
  need.parts = Xxh3(std::as_bytes(std::span(parts)));
  return need;
}

std::optional<Hash128> DigestOfFiles(const Metadata& metadata, const std::string& directory,
                                     bool remote) {
  Bytes text;
  ByteWriter out(&text);
  out.Raw({reinterpret_cast<const char*>(metadata.save_id.bytes.data()),
           metadata.save_id.bytes.size()});
  bool has_sums = true;
  for (const DataFile& file : metadata.files) {
    out.String(file.name);
    out.U64(file.size);
    out.U64(file.data_begin);
    out.U32(file.header_crc32c);
    for (const std::uint32_t crc : file.block_crc32c) {
      out.U32(crc);
    }
    has_sums = has_sums && (file.size == file.data_begin || !file.block_crc32c.empty());
  }
  if (!has_sums && !remote) {
    return std::nullopt;
  }
  out.String(has_sums ? "" : directory);
  return Xxh3(AsByteSpan(text));
}

namespace {

using Ranks = std::vector<std::size_t>;
/// Ranks that share their reads: where all do, under no digest, else by that of their parts.
using Groups = std::map<Hash128, Ranks>;

/// Returns a group without the addresses of ranks of other nodes that this one never asks: as
/// PeerReads has it, a rank asks the owner of number n if n is its place, modulo the ranks of its
/// node.
ReadGroup AsAsked(ReadGroup group) {
  std::size_t all = 0;
  for (const auto& node : group.nodes) {
    all += node.size();
  }
  const std::size_t step = std::gcd(all, group.nodes[group.node].size());
  std::size_t owner = 0;
  for (std::size_t node = 0; node < group.nodes.size(); ++node) {
    for (std::string& address : group.nodes[node]) {
      if (node != group.node && owner % step != group.place % step) {
        address.clear();
      }
      ++owner;
    }
  }
  return group;
}

/// Lets ranks read for each other, `kMostNodes` nodes together.
void ShareBySockets(std::span<const ReadNeed> needs, const Ranks& ranks,
                    std::vector<ReadGroup>* sharing) {
  std::map<std::string_view, Ranks> by_node;
  for (const std::size_t rank : ranks) {
    by_node[needs[rank].node].push_back(rank);
  }
  for (auto begin = by_node.begin(); begin != by_node.end();) {
    ReadGroup group;
    group.remote = needs[ranks.front()].remote;
    auto end = begin;
    for (; end != by_node.end() && group.nodes.size() < kMostNodes; ++end) {
      auto& addresses = group.nodes.emplace_back();
      for (const std::size_t rank : end->second) {
        addresses.push_back(needs[rank].address);
      }
    }
    for (; begin != end; ++begin, ++group.node) {
      for (group.place = 0; group.place < begin->second.size(); ++group.place) {
        (*sharing)[begin->second[group.place]] = AsAsked(group);
      }
    }
  }
}

}  // namespace

std::vector<ReadGroup> ShareReads(const Metadata& metadata, std::span<const ReadNeed> needs) {
  const Stretches stretches(metadata);
  std::map<std::string_view, Demand> nodes;
  Demand all;
  bool remote = false;
  for (const ReadNeed& need : needs) {
    if (!need.node.empty()) {
      nodes[need.node].Add(need);
      all.Add(need);
      remote = remote || need.remote;
    }
  }
  std::uint64_t asked = remote ? all.bytes : 0;  // Of the storage, if no rank reads for another.
  std::map<std::string_view, bool> node_shares;
  for (const auto& [name, node] : nodes) {
    const std::uint64_t there = stretches.BytesIn(node.stretches);
    node_shares[name] = ReadsTwice(node.bytes, there);
    asked += remote ? 0 : std::min(node.bytes, there);
  }
  const bool all_share = ReadsTwice(asked, stretches.BytesIn(all.stretches));
  std::map<Hash128, Groups> by_sockets;         // By the digest of the files.
  std::map<std::string_view, Groups> by_cache;  // By node.
  for (std::size_t rank = 0; rank < needs.size(); ++rank) {
    const ReadNeed& need = needs[rank];
    if (!need.node.empty()) {
      by_cache[need.node][node_shares[need.node] ? Hash128{} : need.parts].push_back(rank);
    }
    if (!need.node.empty() && !need.address.empty()) {
      by_sockets[need.files][all_share ? Hash128{} : need.parts].push_back(rank);
    }
  }
  std::vector<ReadGroup> sharing(needs.size());
  for (const auto& [node, groups] : by_cache) {
    for (const auto& [parts, ranks] : groups) {
      for (std::size_t place = 0; place < ranks.size() && !remote; ++place) {
        sharing[ranks[place]].by_cache = {static_cast<std::uint32_t>(place),
                                          static_cast<std::uint32_t>(ranks.size())};
      }
    }
  }
  for (const auto& [files, groups] : by_sockets) {
    for (const auto& [parts, ranks] : groups) {
      const bool one_node = std::all_of(ranks.begin(), ranks.end(), [&](std::size_t rank) {
        return needs[rank].node == needs[ranks.front()].node;
      });
      if (ranks.size() > 1 && (remote || !one_node)) {
        ShareBySockets(needs, ranks, &sharing);
      }
    }
  }
  return sharing;
}

}  // namespace varve
