/// Assigns shards to the ranks that write them: steps 3 to 5 of settling (settle.cc).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "format/variants.h"
#include "plan/save_plan.h"
#include "tensor/box.h"

/// Names that other modules use for things of their own.
namespace varve::settling {

/// A tensor of a rank's plan.
struct Held {
  const PlannedTensor* item = nullptr;
  std::uint32_t rank = 0;
  std::uint32_t index = 0;  ///< Into that rank's LocalPlan::tensors.
};

/// Those who hold one thing, by their ranks.
using Holders = std::span<const Held>;

/// One distinct box of one tensor and the ranks that hold it.
struct Shard {
  Holders holders;
  std::uint64_t bytes = 0;

  [[nodiscard]] const PlannedTensor& item() const { return *holders[0].item; }
};

/// A shard to be poured, of one of the tensors that its item stands for.
struct Poured {
  const Shard* shard = nullptr;
  std::uint32_t member = 0;
};

/// A shard that is part of a value's archive.
struct Part {
  const Shard* shard = nullptr;
  bool differs = false;
};

inline std::vector<std::uint32_t> RanksOf(Holders holders) {
  std::vector<std::uint32_t> ranks;
  ranks.reserve(holders.size());
  for (const Held& one : holders) {
    ranks.push_back(one.rank);
  }
  return ranks;
}

/// Assigns shards and keeps count of each rank's bytes.
class Balancer {
 public:
  Balancer(std::size_t rank_count, Replicas replicas)
      : plan_{}, load_(rank_count, 0), replicas_(replicas) {
    plan_.ranks.resize(rank_count);
  }

  void Assign(const Held& holder, Box box, std::uint32_t member = ChunkAssignment::kAllMembers) {
    const bool all = member == ChunkAssignment::kAllMembers;
    load_[holder.rank] +=
        Volume(box.sizes) * ItemSize(holder.item->dtype()) * (all ? holder.item->alike : 1);
    ChunkAssignment chunk{holder.index};
    chunk.member = holder.item->alike > 1 ? member : ChunkAssignment::kAllMembers;
    if (!(box == holder.item->box)) {
      chunk.part = std::make_shared<const Box>(std::move(box));
    }
    plan_.ranks[holder.rank].chunks.push_back(std::move(chunk));
  }

  /// Pours shards that all have the same holders.
  void Pour(std::vector<Poured> group) {
    std::stable_sort(group.begin(), group.end(), [](const Poured& a, const Poured& b) {
      return a.shard->bytes > b.shard->bytes;
    });
    const Holders ranks = group.front().shard->holders;
    std::uint64_t total = 0;
    for (const Poured& one : group) {
      total += one.shard->bytes;
    }
    const std::uint64_t level = Level(ranks, total);
    std::size_t holder = 0;
    for (const Poured& one : group) {
      const Shard& shard = *one.shard;
      std::vector<Box> rest{shard.item().box};  // Not assigned yet; the last box goes first.
      while (!rest.empty()) {
        if (replicas_ == Replicas::kWhole || shard.bytes <= kMinCutBytes ||
            holder == ranks.size()) {
          Assign(shard.holders[Lightest(ranks)], TakeLast(&rest), one.member);
          continue;
        }
        const std::uint64_t load = load_[ranks[holder].rank];
        const std::uint64_t room = load < level ? level - load : 0;
        // A little over the level beats a crumb: a remainder of a few elements is a chunk too.
        if (Volume(rest.back().sizes) * ItemSize(shard.item().dtype()) <= room + kCrumbBytes) {
          Assign(shard.holders[holder], TakeLast(&rest), one.member);
        } else if (room < kMinCutBytes) {
          ++holder;
        } else {
          Cut(shard.holders[holder], room, one.member, &rest);
        }
      }
    }
  }

  /// Assigns the parts of an archive; returns which holder of the first writes it.
  std::size_t AssignArchive(const std::vector<Part>& parts, bool alike) {
    const std::size_t holder = alike ? Lightest(parts[0].shard->holders) : 0;
    for (const Part& part : parts) {
      Assign(part.shard->holders[holder], part.shard->item().box);
    }
    return holder;
  }

  /// Assigns the values of a shard whose replicas differ; all but the first are variants.
  void AssignValues(const std::vector<std::vector<Held>>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::vector<Held>& value = values[i];
      const bool all_known = std::all_of(
          value.begin(), value.end(), [](const Held& one) { return one.item->fingerprint != 0; });
      const Held& holder = value[all_known ? Lightest(value) : 0];
      Assign(holder, holder.item->box);
      if (i > 0) {
        plan_.ranks[holder.rank].tensor_variants.push_back(
            {holder.index, RangesOf(RanksOf(value))});
      }
    }
  }

  SettledPlan Take() { return std::move(plan_); }

 private:
  // Below this a cut costs more (a chunk record, a separate read) than the balance it buys.
  static constexpr std::uint64_t kMinCutBytes = std::uint64_t{64} << 10;
  static constexpr std::uint64_t kCrumbBytes = kMinCutBytes / 4;

  /// Returns the water level at which `total` more bytes fit on `ranks`.
  [[nodiscard]] std::uint64_t Level(Holders ranks, std::uint64_t total) const {
    std::vector<std::uint64_t> loads;
    loads.reserve(ranks.size());
    for (const Held& one : ranks) {
      loads.push_back(load_[one.rank]);
    }
    std::sort(loads.begin(), loads.end());
    std::uint64_t below = 0;  // Sum of the loads under the level.
    for (std::size_t count = 1; count <= loads.size(); ++count) {
      below += loads[count - 1];
      const std::uint64_t level = (below + total + count - 1) / count;
      if (count == loads.size() || level <= loads[count]) {
        return level;
      }
    }
    return total;
  }

  [[nodiscard]] std::size_t Lightest(Holders ranks) const {
    std::size_t best = 0;
    for (std::size_t i = 1; i < ranks.size(); ++i) {
      if (load_[ranks[i].rank] < load_[ranks[best].rank]) {
        best = i;
      }
    }
    return best;
  }

  static Box TakeLast(std::vector<Box>* boxes) {
    Box last = std::move(boxes->back());
    boxes->pop_back();
    return last;
  }

  /// Assigns as much of the front of the last box as fits `room`, in slices of its outermost
  /// divisible dimension. Where not one slice fits, the first slice becomes a box of its own, to be
  /// cut along the dimensions inside: a tensor with a short first dimension spreads like any other.
  void Cut(const Held& holder, std::uint64_t room, std::uint32_t member, std::vector<Box>* rest) {
    Box& box = rest->back();
    std::size_t d = 0;
    while (box.sizes[d] == 1) {  // Ends: the box is larger than `room`, so than one element.
      ++d;
    }
    const std::uint64_t slice_bytes =
        Volume(box.sizes) * ItemSize(holder.item->dtype()) / box.sizes[d];
    const std::uint64_t slices = room / slice_bytes;
    Box front = box;
    front.sizes[d] = std::max(slices, std::uint64_t{1});
    box.offsets[d] += front.sizes[d];
    box.sizes[d] -= front.sizes[d];
    if (slices > 0) {
      Assign(holder, std::move(front), member);
    } else {
      rest->push_back(std::move(front));
    }
  }

  SettledPlan plan_;
  std::vector<std::uint64_t> load_;
  Replicas replicas_;
};

}  // namespace varve::settling
