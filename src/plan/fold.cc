#include "plan/fold.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/bytes.h"
#include "base/checksum.h"

namespace varve {
namespace {

/// The families that ranks have in common.
struct Pattern {
  const SpecTable* table = nullptr;
  Families families;
  std::vector<std::uint32_t> tensors;  ///< By item: the number of its tensor among all ranks'.
  std::vector<std::uint32_t> places;   ///< By item: its place in its family.
};

/// A rank's plan, decoded but for its items.
struct Decoded {
  std::size_t pattern = 0;
  std::vector<ObjectItem> objects;
  std::vector<FamilyShards> shards;
};

const TensorSpec& SpecOf(const Pattern& pattern, std::uint32_t item) {
  return *(*pattern.table)[pattern.families.specs[item]];
}

/// The tensors of all ranks, by numbers, and which are alike.
class AlikeTensors {
 public:
  static constexpr std::uint32_t kAlone = 0;  ///< The group of all tensors that are like no other.

  /// Numbers the tensors of a pattern.
  void Add(Pattern* pattern) {
    for (const std::uint32_t number : pattern->families.specs) {
      const SharedSpec& spec = (*pattern->table)[number];
      const auto next = static_cast<std::uint32_t>(specs_.size());
      const auto [at, is_new] = numbers_.emplace(spec->fqn, next);
      if (is_new) {
        specs_.push_back(spec);
      }
      pattern->tensors.push_back(at->second);
    }
    groups_.resize(specs_.size(), kAlone + 1);
  }

  void SetAlone(std::uint32_t tensor) { groups_[tensor] = kAlone; }
  void SetAlone(const std::string& fqn) {
    if (const auto found = numbers_.find(fqn); found != numbers_.end()) {
      SetAlone(found->second);
    }
  }

  /// Takes a group apart where its tensors are of several families of a pattern, or of none.
  void Refine(const Pattern& pattern) {
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> refined;
    for (std::size_t item = 0; item < pattern.tensors.size(); ++item) {
      std::uint32_t& group = groups_[pattern.tensors[item]];
      if (group != kAlone) {
        const auto [at, is_new] =
            refined.try_emplace({group, pattern.families.family[item]}, group_count_);
        group_count_ += is_new ? 1 : 0;
        group = at->second;
      }
    }
  }

  [[nodiscard]] std::uint32_t GroupOf(std::uint32_t tensor) const { return groups_[tensor]; }

  /// Returns each tensor that is not the first of its group by name.
  [[nodiscard]] std::vector<SharedSpec> Hidden() const {
    std::vector<const SharedSpec*> first(group_count_, nullptr);
    for (std::size_t tensor = 0; tensor < specs_.size(); ++tensor) {
      const SharedSpec*& lowest = first[groups_[tensor]];
      if (lowest == nullptr || specs_[tensor]->fqn < (*lowest)->fqn) {
        lowest = &specs_[tensor];
      }
    }
    std::vector<SharedSpec> hidden;
    for (std::size_t tensor = 0; tensor < specs_.size(); ++tensor) {
      if (groups_[tensor] != kAlone && first[groups_[tensor]] != &specs_[tensor]) {
        hidden.push_back(specs_[tensor]);
      }
    }
    return hidden;
  }

 private:
  std::unordered_map<std::string_view, std::uint32_t> numbers_;  // Looked up only.
  std::vector<SharedSpec> specs_;
  std::vector<std::uint32_t> groups_;
  std::uint32_t group_count_ = kAlone + 2;
};

/// Finds the tensors that are alone for how ranks of a pattern hold them.
void SetAlone(const Pattern& pattern, AlikeTensors* alike) {
  std::set<std::uint32_t> seen;
  for (const std::uint32_t tensor : pattern.tensors) {
    if (!seen.insert(tensor).second) {
      alike->SetAlone(tensor);
    }
  }
  for (const Families::Link& link : pattern.families.tied) {
    alike->SetAlone(pattern.tensors[link.item]);
    alike->SetAlone(pattern.tensors[link.to]);
  }
  for (const Families::Link& link : pattern.families.parts) {
    alike->SetAlone(pattern.tensors[link.item]);
  }
}

bool IsTaken(std::uint64_t fingerprint) { return fingerprint != 0 && fingerprint != kUnhashed; }

/// Finds those that are alone for the values and fingerprints of one rank.
void SetAlone(const Decoded& rank, const Pattern& pattern, AlikeTensors* alike) {
  for (const ObjectItem& object : rank.objects) {
    alike->SetAlone(object.fqn);
  }
  for (std::size_t family = 0; family < rank.shards.size(); ++family) {
    const std::vector<std::uint64_t>& prints = rank.shards[family].fingerprints;
    if (prints.size() > 1 && !std::all_of(prints.begin(), prints.end(), IsTaken)) {
      for (const std::uint32_t item : pattern.families.members[family]) {
        alike->SetAlone(pattern.tensors[item]);
      }
    }
  }
}

/// Returns the place of each item's tensor in a data file (ChunkBefore).
std::vector<std::uint32_t> FileOrder(const Pattern& pattern) {
  std::vector<std::uint32_t> items(pattern.tensors.size());
  std::iota(items.begin(), items.end(), 0U);
  std::sort(items.begin(), items.end(), [&](std::uint32_t a, std::uint32_t b) {
    const TensorSpec& x = SpecOf(pattern, a);
    const TensorSpec& y = SpecOf(pattern, b);
    return ItemSize(x.dtype) != ItemSize(y.dtype) ? ItemSize(x.dtype) > ItemSize(y.dtype)
                                                  : x.fqn < y.fqn;
  });
  std::vector<std::uint32_t> order(items.size());
  for (std::size_t place = 0; place < items.size(); ++place) {
    const bool same =
        place > 0 && pattern.tensors[items[place]] == pattern.tensors[items[place - 1]];
    order[items[place]] = same ? order[items[place - 1]] : static_cast<std::uint32_t>(place);
  }
  return order;
}

std::shared_ptr<const Fold> FoldOf(const Pattern& pattern, const AlikeTensors& alike) {
  auto fold = std::make_shared<Fold>();
  std::unordered_map<std::uint32_t, std::uint32_t> items_of;  // By group. Looked up only.
  for (std::uint32_t item = 0; item < pattern.tensors.size(); ++item) {
    const std::uint32_t group = alike.GroupOf(pattern.tensors[item]);
    const auto next = static_cast<std::uint32_t>(fold->items.size());
    const std::uint32_t at =
        group == AlikeTensors::kAlone ? next : items_of.try_emplace(group, next).first->second;
    if (at == next) {
      fold->items.emplace_back();
    }
    fold->items[at].push_back(item);
    fold->folded.push_back(at);
  }
  for (std::vector<std::uint32_t>& items : fold->items) {
    std::sort(items.begin(), items.end(), [&](std::uint32_t a, std::uint32_t b) {
      return SpecOf(pattern, a).fqn < SpecOf(pattern, b).fqn;
    });
  }
  fold->order = FileOrder(pattern);
  return fold;
}

/// Returns the fingerprint of items of one family.
std::uint64_t FingerprintOf(const std::vector<std::uint32_t>& items, const Pattern& pattern,
                            const FamilyShards& shards) {
  if (items.size() == 1 || shards.fingerprints.size() == 1) {
    return shards.FingerprintOf(pattern.places[items[0]]);
  }
  Bytes all;
  ByteWriter out(&all);
  for (const std::uint32_t item : items) {
    out.U64(shards.FingerprintOf(pattern.places[item]));
  }
  std::uint64_t together = 0;
  std::memcpy(&together, Xxh3(AsByteSpan(all)).bytes.data(), sizeof(together));
  return IsTaken(together) ? together : 1;
}

LocalPlan PlanOf(Decoded rank, const Pattern& pattern, const Fold& fold) {
  LocalPlan plan;
  plan.objects = std::move(rank.objects);
  plan.tensors.reserve(fold.items.size());
  for (const std::vector<std::uint32_t>& items : fold.items) {
    const FamilyShards& shards = rank.shards[pattern.families.family[items[0]]];
    PlannedTensor& made =
        plan.tensors.emplace_back((*pattern.table)[pattern.families.specs[items[0]]], shards.box);
    made.fingerprint = FingerprintOf(items, pattern, shards);
    made.alike = static_cast<std::uint32_t>(items.size());
  }
  for (const Families::Link& link : pattern.families.tied) {
    plan.tensors[fold.folded[link.item]].tied_to = fold.folded[link.to];
  }
  for (const Families::Link& link : pattern.families.parts) {
    plan.tensors[fold.folded[link.item]].part_of = link.to;
  }
  return plan;
}

/// Decodes the plans of all ranks, each pattern once. Ends early where there are too many patterns.
class PlanDecoder {
 public:
  Status Decode(std::span<const EncodedPlan> encoded) {
    for (std::size_t rank = 0; rank < encoded.size() && !HasTooMany(encoded.size()); ++rank) {
      VARVE_RETURN_IF_ERROR(Add(encoded[rank]).Annotate("plan of rank " + std::to_string(rank)));
    }
    return Status::Ok();
  }

  [[nodiscard]] bool HasTooMany(std::size_t world_size) const {
    return 2 * patterns.size() > world_size;
  }

  std::vector<Pattern> patterns;
  std::vector<Decoded> ranks;

 private:
  Status Add(const EncodedPlan& one) {
    VARVE_ASSIGN_OR_RETURN(SharesParts parts, SplitShares(one.shares));
    const auto [at, is_new] = numbers_.try_emplace({one.table, parts.families}, patterns.size());
    if (is_new) {
      VARVE_ASSIGN_OR_RETURN(Families families, Families::Decode(parts.families, *one.table));
      std::vector<std::uint32_t> places = PlacesOf(families);
      patterns.push_back({one.table, std::move(families), {}, std::move(places)});
    }
    VARVE_ASSIGN_OR_RETURN(auto shards,
                           DecodeFamilyShards(parts, patterns[at->second].families, *one.table));
    ranks.push_back({at->second, std::move(parts.objects), std::move(shards)});
    return Status::Ok();
  }

  static std::vector<std::uint32_t> PlacesOf(const Families& families) {
    std::vector<std::uint32_t> places(families.family.size());
    for (const std::vector<std::uint32_t>& members : families.members) {
      for (std::size_t place = 0; place < members.size(); ++place) {
        places[members[place]] = static_cast<std::uint32_t>(place);
      }
    }
    return places;
  }

  std::map<std::pair<const SpecTable*, std::string_view>, std::size_t> numbers_;  // Looked up only.
};

}  // namespace

Result<std::optional<FoldedPlans>> FoldPlans(std::span<const EncodedPlan> encoded) {
  PlanDecoder decoded;
  VARVE_RETURN_IF_ERROR(decoded.Decode(encoded));
  if (decoded.HasTooMany(encoded.size())) {
    return std::optional<FoldedPlans>();
  }
  AlikeTensors alike;
  for (Pattern& pattern : decoded.patterns) {
    alike.Add(&pattern);
  }
  for (const Pattern& pattern : decoded.patterns) {
    SetAlone(pattern, &alike);
  }
  for (const Decoded& rank : decoded.ranks) {
    SetAlone(rank, decoded.patterns[rank.pattern], &alike);
  }
  for (const Pattern& pattern : decoded.patterns) {
    alike.Refine(pattern);
  }
  std::vector<std::shared_ptr<const Fold>> folds;
  folds.reserve(decoded.patterns.size());
  for (const Pattern& pattern : decoded.patterns) {
    folds.push_back(FoldOf(pattern, alike));
  }
  FoldedPlans folded;
  folded.hidden = alike.Hidden();
  for (Decoded& rank : decoded.ranks) {
    const std::size_t pattern = rank.pattern;
    folded.folds.push_back(folds[pattern]);
    folded.plans.push_back(PlanOf(std::move(rank), decoded.patterns[pattern], *folds[pattern]));
  }
  return std::optional(std::move(folded));
}

RankAssignment Unfold(const RankAssignment& assignment, const Fold& fold) {
  RankAssignment unfolded = assignment;
  unfolded.chunks.clear();
  for (const ChunkAssignment& chunk : assignment.chunks) {
    const std::vector<std::uint32_t>& items = fold.items[chunk.item];
    if (chunk.member != ChunkAssignment::kAllMembers) {
      unfolded.chunks.push_back({items[chunk.member], chunk.part});
      continue;
    }
    for (const std::uint32_t item : items) {
      unfolded.chunks.push_back({item, chunk.part});
    }
  }
  // Of the chunks of one shard the assignment has the order.
  std::stable_sort(unfolded.chunks.begin(), unfolded.chunks.end(),
                   [&](const ChunkAssignment& a, const ChunkAssignment& b) {
                     return fold.order[a.item] < fold.order[b.item];
                   });
  const auto unfold = [&](std::uint32_t* item) { *item = fold.items[*item][0]; };
  for (std::uint32_t& alias : unfolded.aliases) {
    unfold(&alias);
  }
  for (VariantAssignment& variant : unfolded.tensor_variants) {
    unfold(&variant.item);
  }
  return unfolded;
}

ComparedItems Unfold(const ComparedItems& compared, const Fold& fold, std::size_t objects) {
  std::vector<std::uint64_t> groups(fold.items.size() + objects, ComparedItems::kHeldAlone);
  compared.ForEachShared(groups.size(),
                         [&](std::size_t item, std::uint64_t group) { groups[item] = group; });
  ComparedItems unfolded;
  const auto add = [&](std::uint64_t group) {
    if (unfolded.runs.empty() || unfolded.runs.back().group != group) {
      unfolded.runs.push_back({0, group});
    }
    ++unfolded.runs.back().items;
  };
  for (const std::uint32_t item : fold.folded) {
    add(groups[item]);
  }
  for (std::size_t i = 0; i < objects; ++i) {
    add(groups[fold.items.size() + i]);
  }
  return unfolded;
}

}  // namespace varve
