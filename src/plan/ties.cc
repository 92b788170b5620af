#include "plan/ties.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "tensor/box.h"

namespace varve {
namespace {

using Names = std::unordered_set<std::string_view>;  // Membership only; its order is never seen.
using ShardCounts = std::unordered_map<std::string_view, std::size_t>;  // Looked up only.

/// Returns all pairs that are tied on some rank. A name that ranks tie to different ones is left
/// out.
Aliases Candidates(std::span<const LocalPlan> plans) {
  Aliases candidates;
  Names contradicted;
  for (const LocalPlan& plan : plans) {
    for (const PlannedTensor& item : plan.tensors) {
      if (!item.tied_to) {
        continue;
      }
      const std::string_view of = plan.tensors[*item.tied_to].fqn();
      const auto [at, is_new] = candidates.emplace(item.fqn(), of);
      if (!is_new && at->second != of) {
        contradicted.insert(item.fqn());
      }
    }
  }
  std::erase_if(candidates, [&](const auto& pair) { return contradicted.contains(pair.first); });
  return candidates;
}

/// Removes the candidates that are not wholly tied on this rank.
void CheckOnRank(const LocalPlan& plan, Aliases* candidates) {
  Names mentioned;
  for (const auto& [alias, of] : *candidates) {
    mentioned.insert({alias, of});
  }
  ShardCounts held;
  ShardCounts tied;
  for (const PlannedTensor& item : plan.tensors) {
    if (!IsEmpty(item.box) && mentioned.contains(item.fqn())) {
      ++held[item.fqn()];
    }
    if (item.tied_to) {
      ++tied[item.fqn()];
    }
  }
  const auto count = [](const ShardCounts& counts, std::string_view name) {
    const auto found = counts.find(name);
    return found == counts.end() ? 0 : found->second;
  };
  std::erase_if(*candidates, [&](const auto& pair) {
    const std::size_t shards = count(held, pair.first);
    return shards != count(tied, pair.first) || shards != count(held, pair.second);
  });
}

}  // namespace

Aliases SettleTies(std::span<const LocalPlan> plans) {
  Aliases aliases = Candidates(plans);
  for (const LocalPlan& plan : plans) {
    if (aliases.empty()) {
      return aliases;
    }
    CheckOnRank(plan, &aliases);
  }
  // On one rank a name is tied to one that is tied to none; ranks together may make a chain.
  std::erase_if(aliases,
                [names = aliases](const auto& pair) { return names.contains(pair.second); });
  return aliases;
}

void FollowTies(std::span<const LocalPlan> plans, const Aliases& aliases, Writers* writers) {
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    const LocalPlan& plan = plans[rank];
    for (const PlannedTensor& item : plan.tensors) {
      const auto to = item.tied_to ? plan.tensors[*item.tied_to].part_of : std::nullopt;
      if (!item.part_of || !to || !aliases.contains(item.fqn())) {
        continue;
      }
      const auto writer = writers->find(plan.objects[*to].fqn);
      if (writer != writers->end() && writer->second.rank == rank) {
        writers->emplace(plan.objects[*item.part_of].fqn,
                         Writer{writer->second.rank, *item.part_of});
      }
    }
  }
}

void AssignAliases(const LocalPlan& plan, const Aliases& aliases, RankAssignment* assignment) {
  if (aliases.empty()) {
    return;
  }
  std::unordered_set<std::uint32_t> stored;  // Membership only; its order is never seen.
  for (const ChunkAssignment& chunk : assignment->chunks) {
    stored.insert(chunk.item);
  }
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const PlannedTensor& item = plan.tensors[i];
    if (item.tied_to && stored.contains(*item.tied_to) && aliases.contains(item.fqn())) {
      assignment->aliases.push_back(static_cast<std::uint32_t>(i));
    }
  }
}

}  // namespace varve
