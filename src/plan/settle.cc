// Settling: from all ranks' local plans to who writes what.
//
//   0. A tensor that is tied to another one on all ranks that hold either is left out here: it is
//      an alias of what is stored (ties.h).
//   1. Shards are grouped by tensor and box. Equal boxes on several ranks are replicas; boxes that
//      overlap without being equal are an error, and so is a part of a tensor that no rank holds.
//   2. A shard whose replicas have different fingerprints is taken apart by value. The value of the
//      lowest of its ranks has the tensor's name; replicas without a fingerprint count as equal to
//      it. Each other value becomes a variant (format/variants.h) of the ranks that hold it, or is
//      dropped (Differing::kFirst). Plain values are taken apart alike, by their content.
//      Ranks leave out the fingerprint of a shard that is at most its rank's part of the tensor, as
//      with FSDP over all ranks: where all do so and no part is missing, there are no replicas.
//   3. A shard with one holder is written by it. A value of a shard whose replicas differ is
//      written whole by one of its holders, the one with the fewest bytes so far: fingerprints of
//      samples have shown that this shard's replicas diverge, and cut among ranks it could be a mix
//      that no rank ever had. With kFirst the lowest rank writes it. These bytes are the load a
//      rank starts with. Shards that are parts of one plain value's archive go to one rank with it:
//      to the holder with the fewest bytes if the same ranks hold the same of all. Else each goes
//      to the lowest of its holders; where these are several, there is no archive.
//   4. Shards with the same set of holders form a group, groups with fewer holders first (their
//      bytes have fewer places to go). Each group is poured onto its holders like water: the level
//      is where all of its bytes fit when every holder below the level is filled up to it.
//   5. Large shards are laid end to end and cut where a holder is full (McNaughton's wrap-around
//      rule), so a group is cut at most in one place per holder. Small ones then go, largest first,
//      to the holder with the fewest bytes. With Replicas::kWhole all do: of replicas that differ
//      where no sample was taken, a cut would store a mix.
//
// In folded plans an item stands for several tensors that are alike (fold.h). A shard with one
// holder is written by it for all of them, and counts as many times its bytes. Of shards with
// several holders each tensor's is poured for itself, in step 4. Where replicas of such a shard
// differ, or some have no fingerprint, plans that are not folded are needed: some of its tensors may
// be equal, and later saves compare each (replica_pattern.h).

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/sort_by_name.h"
#include "format/structure.h"
#include "format/variants.h"
#include "plan/balancer.h"
#include "plan/replica_pattern.h"
#include "plan/save_plan.h"
#include "plan/ties.h"
#include "tensor/box.h"
#include "tensor/overlap.h"

namespace varve {
namespace {

using settling::Balancer;
using settling::Held;
using settling::Holders;
using settling::Part;
using settling::Poured;
using settling::RanksOf;
using settling::Shard;

bool AreSameRanks(Holders a, Holders b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Held& x, const Held& y) { return x.rank == y.rank; });
}

/// Returns the values of a shard, each with its holders, by the lowest rank that holds it.
std::vector<std::vector<Held>> ValuesOf(Holders holders) {
  std::vector<std::vector<Held>> values;
  std::map<std::uint64_t, std::size_t> by_fingerprint;
  for (const Held& one : holders) {
    const std::uint64_t print = one.item->fingerprint;
    const std::size_t at =
        print == 0 ? 0 : by_fingerprint.emplace(print, by_fingerprint.size()).first->second;
    if (at == values.size()) {
      values.emplace_back();
    }
    values[at].push_back(one);
  }
  return values;
}

bool ReplicasDiffer(Holders holders) {
  std::uint64_t known = 0;
  for (const Held& one : holders) {
    const std::uint64_t print = one.item->fingerprint;
    if (known != 0 && print != 0 && print != known) {
      return true;
    }
    known = print != 0 ? print : known;
  }
  return false;
}

bool LacksFingerprints(Holders holders) {
  return holders.size() > 1 && std::any_of(holders.begin(), holders.end(), [](const Held& one) {
           return one.item->fingerprint == kUnhashed;
         });
}

/// Returns true where a shard stands for several tensors, and its holders may have different ones.
bool NeedsEachTensor(const Shard& shard) {
  return shard.item().alike > 1 &&
         std::any_of(shard.holders.begin(), shard.holders.end(), [&](const Held& one) {
           return one.item->fingerprint != shard.item().fingerprint;
         });
}

/// Returns the value that a shard is part of, on the lowest of its ranks.
const ObjectItem& ValueOf(const Shard& shard, const std::vector<LocalPlan>& plans) {
  return plans[shard.holders[0].rank].objects[*shard.item().part_of];
}

/// Returns true where the same ranks hold all parts of an archive, and all of them the same.
bool AreAlike(const std::vector<Part>& parts, const std::vector<LocalPlan>& plans) {
  return std::all_of(parts.begin(), parts.end(), [&](const Part& part) {
    const Shard& shard = *part.shard;
    return !part.differs && AreSameRanks(shard.holders, parts[0].shard->holders) &&
           std::all_of(shard.holders.begin(), shard.holders.end(), [&](const Held& one) {
             return one.item->part_of &&
                    plans[one.rank].objects[*one.item->part_of] == ValueOf(shard, plans);
           });
  });
}

Status CheckTensor(const std::vector<Held>& held, std::size_t begin, std::size_t end,
                   const std::vector<Shard>& shards, std::size_t first_shard) {
  const PlannedTensor& first = *held[begin].item;
  for (std::size_t i = begin; i < end; ++i) {
    const PlannedTensor& item = *held[i].item;
    if (item.of != first.of && (item.dtype() != first.dtype() || item.shape() != first.shape())) {
      return InvalidArgument("tensor \"" + item.fqn() + "\": rank " + std::to_string(held[i].rank) +
                             " has " + std::string(DTypeName(item.dtype())) +
                             ToString(item.shape()) + ", rank " + std::to_string(held[begin].rank) +
                             " has " + std::string(DTypeName(first.dtype())) +
                             ToString(first.shape()));
    }
  }
  if (shards.size() == first_shard + 1 &&
      shards[first_shard].item().box == WholeBox(first.shape())) {
    return Status::Ok();
  }
  std::vector<const Box*> boxes;
  std::uint64_t covered = 0;
  for (std::size_t s = first_shard; s < shards.size(); ++s) {
    boxes.push_back(&shards[s].item().box);
    covered += Volume(boxes.back()->sizes);
  }
  const auto overlap = FindOverlap(boxes);
  VARVE_RETURN_IF_ERROR(overlap.status().Annotate("tensor \"" + first.fqn() + "\""));
  if (*overlap) {
    const auto shown = [&](std::size_t number) {
      const Shard& shard = shards[first_shard + number];
      return "rank " + std::to_string(shard.holders[0].rank) + " holds " +
             ToString(shard.item().box);
    };
    return InvalidArgument("tensor \"" + first.fqn() +
                           "\": ranks hold shards that overlap without being equal: " +
                           shown((*overlap)->first) + ", " + shown((*overlap)->second));
  }
  if (covered != Volume(first.shape())) {
    std::vector<Box> held_boxes;
    std::transform(boxes.begin(), boxes.end(), std::back_inserter(held_boxes),
                   [](const Box* box) { return *box; });
    return InvalidArgument("tensor \"" + first.fqn() + "\" of shape " + ToString(first.shape()) +
                           ": no rank holds " +
                           ToString(SubtractAll(WholeBox(first.shape()), held_boxes).front()));
  }
  return Status::Ok();
}

/// Returns all that ranks hold, but for tied tensors: by tensor, box and rank.
std::vector<Held> InOrder(const std::vector<LocalPlan>& plans, const Aliases& aliases) {
  std::vector<Held> held;
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    for (std::size_t i = 0; i < plans[rank].tensors.size(); ++i) {
      if (!aliases.empty() && aliases.contains(plans[rank].tensors[i].fqn())) {
        continue;
      }
      held.push_back({&plans[rank].tensors[i], static_cast<std::uint32_t>(rank),
                      static_cast<std::uint32_t>(i)});
    }
  }
  SortByName(&held, [](const Held& one) { return &one.item->fqn(); });
  const auto before = [](const Held& a, const Held& b) {
    if (a.item->box.offsets != b.item->box.offsets) {
      return a.item->box.offsets < b.item->box.offsets;
    }
    if (a.item->box.sizes != b.item->box.sizes) {
      return a.item->box.sizes < b.item->box.sizes;
    }
    return a.rank < b.rank;
  };
  for (auto begin = held.begin(); begin != held.end();) {
    const auto end = std::find_if(begin, held.end(), [&](const Held& one) {
      return !AreOfOneName(one.item->of, begin->item->of);
    });
    if (!std::is_sorted(begin, end, before)) {
      std::sort(begin, end, before);
    }
    begin = end;
  }
  return held;
}

/// Groups what InOrder returns, which must outlive the shards.
Result<std::vector<Shard>> GroupShards(const std::vector<Held>& held) {
  std::vector<Shard> shards;
  for (std::size_t begin = 0; begin < held.size();) {
    std::size_t end = begin;
    const std::size_t first_shard = shards.size();
    for (; end < held.size() && AreOfOneName(held[end].item->of, held[begin].item->of); ++end) {
      const Held& one = held[end];
      // Empty shards carry nothing, but an empty tensor is kept: one rank stores its shape.
      if (IsEmpty(one.item->box) &&
          (Volume(one.item->shape()) != 0 || shards.size() > first_shard)) {
        continue;
      }
      const bool is_replica = shards.size() > first_shard &&
                              shards.back().item().box == one.item->box &&
                              shards.back().holders.back().rank != one.rank;
      if (is_replica) {  // It lies behind the others of its box.
        Holders& holders = shards.back().holders;
        holders = Holders(holders.data(), holders.size() + 1);
      } else {
        shards.push_back(
            {Holders(&one, 1), Volume(one.item->box.sizes) * ItemSize(one.item->dtype())});
      }
    }
    VARVE_RETURN_IF_ERROR(CheckTensor(held, begin, end, shards, first_shard));
    begin = end;
  }
  return shards;
}

/// Few holders first, then by rank numbers.
struct FewerHoldersFirst {
  bool operator()(const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b) const {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  }
};

/// The ranks that hold one content of a plain value, and its index in the plan of each.
struct ObjectValue {
  Hash128 content;
  std::vector<std::uint32_t> ranks;
  std::vector<std::uint32_t> items;
};

/// Adds a value that several ranks hold to the pattern.
void AddValue(const std::vector<LocalPlan>& plans, const std::vector<ObjectValue>& values,
              ReplicaPattern* pattern) {
  if (pattern == nullptr || (values.size() == 1 && values[0].ranks.size() == 1)) {
    return;
  }
  std::vector<HeldContent> holders;
  for (const ObjectValue& value : values) {
    for (std::size_t i = 0; i < value.ranks.size(); ++i) {
      const std::size_t item = plans[value.ranks[i]].tensors.size() + value.items[i];
      holders.push_back({value.ranks[i], static_cast<std::uint32_t>(item), value.content});
    }
  }
  std::sort(holders.begin(), holders.end(),
            [](const HeldContent& a, const HeldContent& b) { return a.rank < b.rank; });
  pattern->Add(holders);
}

/// Adds a shard that several ranks hold to the pattern.
void AddShard(Holders holders, ReplicaPattern* pattern) {
  if (pattern == nullptr || holders.size() < 2) {
    return;
  }
  std::vector<HeldContent> contents;
  contents.reserve(holders.size());
  for (const Held& one : holders) {
    contents.push_back({one.rank, one.index, ContentOf(*one.item)});
  }
  pattern->Add(contents);
}

/// `writers` says who writes values that are archives with tensors.
void AssignObjects(const std::vector<LocalPlan>& plans, Differing differing, const Writers& writers,
                   ReplicaPattern* pattern, SettledPlan* settled) {
  std::map<std::string_view, std::vector<ObjectValue>> values;
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    for (std::size_t i = 0; i < plans[rank].objects.size(); ++i) {
      const ObjectItem& item = plans[rank].objects[i];
      std::vector<ObjectValue>& known = values[item.fqn];
      auto at = std::find_if(known.begin(), known.end(), [&](const ObjectValue& value) {
        return value.content == item.content;
      });
      if (at == known.end()) {
        known.push_back({item.content, {}, {}});
        at = std::prev(known.end());
      }
      at->ranks.push_back(static_cast<std::uint32_t>(rank));
      at->items.push_back(static_cast<std::uint32_t>(i));
    }
  }
  for (const auto& [fqn, known] : values) {
    AddValue(plans, known, pattern);
    const auto writer = writers.find(fqn);
    const Writer chosen =
        writer == writers.end() ? Writer{known[0].ranks[0], known[0].items[0]} : writer->second;
    settled->ranks[chosen.rank].objects.push_back(chosen.item);
    if (known.size() > 1) {
      settled->differing_objects.emplace_back(fqn);
    }
    for (std::size_t i = 1; i < known.size() && differing == Differing::kKeep; ++i) {
      RankAssignment& assignment = settled->ranks[known[i].ranks[0]];
      assignment.objects.push_back(known[i].items[0]);
      assignment.object_variants.push_back({known[i].items[0], RangesOf(known[i].ranks)});
    }
  }
}

/// Puts lists of items in the order that they have in the local plans.
void SortItems(RankAssignment* assignment) {
  const auto by_item = [](const VariantAssignment& a, const VariantAssignment& b) {
    return a.item < b.item;
  };
  std::sort(assignment->objects.begin(), assignment->objects.end());
  std::sort(assignment->tensor_variants.begin(), assignment->tensor_variants.end(), by_item);
  std::sort(assignment->object_variants.begin(), assignment->object_variants.end(), by_item);
}

/// Returns whether a name is that of a shard, which are sorted by theirs, or of an alias.
bool IsTensor(const std::string& fqn, const std::vector<Shard>& shards, const Aliases& aliases) {
  const auto shard = std::lower_bound(
      shards.begin(), shards.end(), fqn,
      [](const Shard& one, const std::string& name) { return one.item().fqn() < name; });
  return (shard != shards.end() && shard->item().fqn() == fqn) || aliases.contains(fqn);
}

/// `shards` and `aliases` are those of `plans`.
Status CheckKinds(const std::vector<LocalPlan>& plans, const std::vector<Shard>& shards,
                  const Aliases& aliases) {
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    for (const ObjectItem& object : plans[rank].objects) {
      if (!IsTensor(object.fqn, shards, aliases)) {
        continue;
      }
      const auto has_tensor = [&](const LocalPlan& plan) {
        return std::any_of(plan.tensors.begin(), plan.tensors.end(),
                           [&](const PlannedTensor& one) { return one.fqn() == object.fqn; });
      };
      const auto other = std::find_if(plans.begin(), plans.end(), has_tensor) - plans.begin();
      return InvalidArgument("\"" + object.fqn + "\" is a tensor on rank " + std::to_string(other) +
                             " and a plain value on rank " + std::to_string(rank) +
                             "; one name stands for one of them on all ranks");
    }
  }
  return Status::Ok();
}

}  // namespace

Result<SettledPlan> Settle(const std::vector<LocalPlan>& plans, Differing keep,
                           ReplicaPattern* pattern, Replicas replicas) {
  const Aliases aliases = SettleTies(plans);
  const std::vector<Held> held = InOrder(plans, aliases);
  VARVE_ASSIGN_OR_RETURN(const std::vector<Shard> shards, GroupShards(held));
  std::set<std::string_view> differing;
  Balancer balancer(plans.size(), replicas);
  std::map<std::vector<std::uint32_t>, std::vector<Poured>, FewerHoldersFirst> groups;
  std::vector<const Shard*> diverged;
  std::map<std::string_view, std::vector<Part>> archives;
  bool lacks_fingerprints = false;
  for (const Shard& shard : shards) {
    const bool differs = ReplicasDiffer(shard.holders);
    lacks_fingerprints =
        lacks_fingerprints || LacksFingerprints(shard.holders) || NeedsEachTensor(shard);
    AddShard(shard.holders, pattern);
    if (differs) {
      differing.insert(shard.item().fqn());
    }
    if (differs && keep == Differing::kKeep) {
      diverged.push_back(&shard);
    } else if (shard.item().part_of) {
      archives[ValueOf(shard, plans).fqn].push_back({&shard, differs});
    } else if (differs || shard.holders.size() == 1) {
      balancer.Assign(shard.holders[0], shard.item().box);
    } else {
      std::vector<Poured>& group = groups[RanksOf(shard.holders)];
      for (std::uint32_t member = 0; member < shard.item().alike; ++member) {
        group.push_back({&shard, member});
      }
    }
  }
  std::stable_sort(diverged.begin(), diverged.end(),
                   [](const Shard* a, const Shard* b) { return a->bytes > b->bytes; });
  for (const Shard* shard : diverged) {
    balancer.AssignValues(ValuesOf(shard->holders));
  }
  Writers writers;
  for (const auto& [value, parts] : archives) {
    const std::size_t holder = balancer.AssignArchive(parts, AreAlike(parts, plans));
    const Held& writer = parts[0].shard->holders[holder];
    writers[value] = {writer.rank, *writer.item->part_of};
  }
  FollowTies(plans, aliases, &writers);
  for (auto& [ranks, group] : groups) {
    balancer.Pour(std::move(group));
  }
  SettledPlan settled = balancer.Take();
  settled.lacks_fingerprints = lacks_fingerprints;
  for (const auto& [alias, of] : aliases) {
    if (differing.contains(of)) {
      differing.insert(alias);
    }
  }
  settled.differing_tensors.assign(differing.begin(), differing.end());
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    AssignAliases(plans[rank], aliases, &settled.ranks[rank]);
  }
  AssignObjects(plans, keep, writers, pattern, &settled);
  for (RankAssignment& assignment : settled.ranks) {
    SortItems(&assignment);
  }
  VARVE_RETURN_IF_ERROR(CheckKinds(plans, shards, aliases));
  std::vector<std::string_view> structures;
  structures.reserve(plans.size());
  for (const LocalPlan& plan : plans) {
    structures.emplace_back(plan.structure);
  }
  VARVE_ASSIGN_OR_RETURN(settled.ranks[0].structure, MergeEncodedStructures(structures));
  return settled;
}

}  // namespace varve
