/// Which shards and plain values several ranks hold, and which of those are equal.
///
/// Settling looks at contents only to see which are equal. So where the plans of all ranks but
/// their contents are as in an earlier save, and the pattern of equal contents is the same too, the
/// settled plan is the same. A rank then sends a sum over all that it holds together with the same
/// other ranks, in place of each content.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "plan/save_plan.h"
#include "varve/hash.h"

namespace varve {

/// Says of each item of one rank's plan whether other ranks hold it, and the same content.
struct ComparedItems {
  static constexpr std::uint64_t kHeldAlone = 0;   ///< No other rank holds it.
  static constexpr std::uint64_t kDiffers = 1;     ///< Some other rank holds another content.
  static constexpr std::uint64_t kFirstGroup = 2;  ///< All its holders have the same: a group.

  /// Items that follow each other in LocalPlan::tensors and then in LocalPlan::objects.
  struct Run {
    std::uint64_t items = 0;
    std::uint64_t group = 0;
    friend bool operator==(const Run&, const Run&) = default;
  };
  std::vector<Run> runs;

  /// Calls `visit(item, group)` for each of the first `count` items that is not held alone.
  template <class Visit>
  void ForEachShared(std::size_t count, const Visit& visit) const {
    std::size_t item = 0;
    for (const Run& run : runs) {
      const std::size_t end = run.items < count - item ? item + run.items : count;
      for (; item < end && run.group != kHeldAlone; ++item) {
        visit(item, run.group);
      }
      item = end;
    }
  }
  friend bool operator==(const ComparedItems&, const ComparedItems&) = default;
};

/// The contents of one rank's shared items, as a few sums.
struct ReplicaSums {
  std::vector<Hash128> groups;     ///< One for each group of the rank, by its number.
  std::vector<Hash128> differing;  ///< The contents of the items that differ, by item.
};

/// Returns the sums of a plan. The fingerprints of all items that are not held alone must be there.
/// The order in which ranks hold the items of a group is of no account.
ReplicaSums SumsOf(const LocalPlan& plan, const ComparedItems& compared);

/// A holder of a shard or value: its rank, the item, and the content there.
struct HeldContent {
  std::uint32_t rank = 0;
  std::uint32_t item = 0;  ///< As in ComparedItems::Run; of a value behind all tensors.
  Hash128 content;
};

/// Returns the content of an item by which it is compared; zero where it is not known.
Hash128 ContentOf(const PlannedTensor& tensor);

/// The pattern of all ranks, on the coordinator.
class ReplicaPattern {
 public:
  /// Ranks that hold more than so many groups, or items that differ, send their whole plans.
  static constexpr std::size_t kMostOfARank = 16;

  ReplicaPattern() = default;
  explicit ReplicaPattern(const std::vector<LocalPlan>& plans);

  /// Adds a shard or value that several ranks hold, by rank.
  void Add(std::span<const HeldContent> holders);
  /// Ends the adding. Returns what each rank compares; empty where a rank would have too many sums.
  std::vector<ComparedItems> Finish();

  /// Returns true where sums of all ranks, by rank, show the pattern that was added. Untrusted
  /// input.
  [[nodiscard]] bool IsThatOf(const std::vector<ReplicaSums>& sums) const;

  /// Returns about how much memory a pattern takes, after Finish.
  [[nodiscard]] std::size_t bytes() const;

 private:
  /// A holder of an item that differs, and which of the item's contents it has.
  struct Differing {
    std::uint32_t rank = 0;
    std::uint32_t item = 0;  ///< From Finish on its place in ReplicaSums::differing.
    std::uint32_t content = 0;
    bool is_known = false;
  };

  std::map<std::vector<std::uint32_t>, std::uint64_t> numbers_;  // Of groups, by their ranks.
  std::vector<std::vector<std::uint64_t>> items_;                // Groups, by rank and item.
  std::vector<std::vector<std::uint64_t>> groups_;               // Ascending, by rank.
  std::vector<std::vector<Differing>> differing_;                // By shard or value.
};

/// Returns true where two plans are alike but for contents, sizes of plain values and structure.
bool AreAlikeButForContents(const LocalPlan& a, const LocalPlan& b);

}  // namespace varve
