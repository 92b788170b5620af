#include "save/hf/holders.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include "tensor/box.h"

namespace varve {
namespace {

/// A chunk of the settled plan, and all that hold it: each rank with its item, ascending.
struct Holders {
  Box box;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> items;

  /// Returns the item of a rank, or null.
  [[nodiscard]] const std::uint32_t* ItemOf(std::uint32_t rank) const {
    const auto found = std::partition_point(items.begin(), items.end(),
                                            [&](const auto& held) { return held.first < rank; });
    return found == items.end() || found->first != rank ? nullptr : &found->second;
  }
};

/// Returns true where for each tensor some rank holds as many elements as it has: else the search
/// for holders, which looks at all pairs of shards, is in vain.
bool MayHoldWhole(const std::vector<LocalPlan>& plans) {
  std::map<std::string_view, std::pair<std::uint64_t, std::uint64_t>> most;  // And of the shape.
  for (const LocalPlan& plan : plans) {
    std::map<std::string_view, std::uint64_t> held;
    for (const PlannedTensor& tensor : plan.tensors) {
      auto& [largest, whole] = most[tensor.fqn()];
      whole = Volume(tensor.shape());
      largest = std::max(largest, held[tensor.fqn()] += Volume(tensor.box.sizes));
    }
  }
  return std::all_of(most.begin(), most.end(),
                     [](const auto& one) { return one.second.first >= one.second.second; });
}

/// The chunks of all ranks, by the name of the tensor.
class ChunkHolders {
 public:
  explicit ChunkHolders(const SettledSave& settled) {
    const std::vector<std::string>& differing = settled.settled.differing_tensors;
    const auto differs = [&](const std::string& fqn) {
      return std::binary_search(differing.begin(), differing.end(), fqn);
    };
    for (std::uint32_t rank = 0; rank < settled.plans.size(); ++rank) {
      for (const ChunkAssignment& chunk : settled.settled.ranks[rank].chunks) {
        const std::string& fqn = settled.plans[rank].tensors[chunk.item].fqn();
        Holders& holders = chunks_[fqn].emplace_back();
        holders.box = chunk.BoxIn(settled.plans[rank]);
        if (differs(fqn)) {
          holders.items.emplace_back(rank, chunk.item);
        }
      }
    }
    for (std::uint32_t rank = 0; rank < settled.plans.size(); ++rank) {
      const auto& tensors = settled.plans[rank].tensors;
      for (std::uint32_t item = 0; item < tensors.size(); ++item) {
        const auto found = chunks_.find(tensors[item].fqn());
        if (found == chunks_.end() || differs(tensors[item].fqn())) {
          continue;
        }
        for (Holders& chunk : found->second) {
          if (Contains(tensors[item].box, chunk.box) &&
              (chunk.items.empty() || chunk.items.back().first != rank)) {
            chunk.items.emplace_back(rank, item);
          }
        }
      }
    }
  }

  [[nodiscard]] const std::vector<Holders>& Of(std::string_view fqn) const {
    const auto found = chunks_.find(fqn);
    return found == chunks_.end() ? none_ : found->second;
  }

  /// Returns the ranks that hold all of a file, ascending; `ranks` is the number of all.
  [[nodiscard]] std::vector<std::uint32_t> OfFile(const HfFolder::File& file,
                                                  std::uint32_t ranks) const {
    std::vector<std::uint32_t> all(ranks);
    std::iota(all.begin(), all.end(), 0U);
    for (const SafetensorsEntry& entry : file.entries) {
      for (const Holders& chunk : Of(entry.fqn)) {
        std::erase_if(all, [&](std::uint32_t rank) { return chunk.ItemOf(rank) == nullptr; });
      }
    }
    return all;
  }

 private:
  std::map<std::string_view, std::vector<Holders>> chunks_;  // Names of the plans.
  std::vector<Holders> none_;                                // Of a tensor without elements.
};

}  // namespace

std::optional<std::vector<std::uint32_t>> GiveFilesToHolders(const HfFolder& folder,
                                                             SettledSave* settled) {
  if (!MayHoldWhole(settled->plans)) {
    return std::nullopt;
  }
  const ChunkHolders holders(*settled);
  const auto ranks = static_cast<std::uint32_t>(settled->plans.size());
  std::vector<std::uint32_t> owners;
  std::vector<std::uint64_t> bytes(ranks, 0);
  std::vector<std::vector<ChunkAssignment>> chunks(ranks);
  for (const HfFolder::File& file : folder.files) {
    const std::vector<std::uint32_t> able = holders.OfFile(file, ranks);
    if (able.empty()) {
      return std::nullopt;
    }
    const std::uint32_t owner =
        *std::min_element(able.begin(), able.end(),
                          [&](std::uint32_t a, std::uint32_t b) { return bytes[a] < bytes[b]; });
    owners.push_back(owner);
    bytes[owner] += file.size;
    for (const SafetensorsEntry& entry : file.entries) {
      for (const Holders& chunk : holders.Of(entry.fqn)) {
        chunks[owner].push_back(Assigned(settled->plans[owner], *chunk.ItemOf(owner), chunk.box));
      }
    }
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    settled->settled.ranks[rank].chunks = std::move(chunks[rank]);
  }
  return owners;
}

}  // namespace varve
