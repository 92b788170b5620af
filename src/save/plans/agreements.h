/// Keeps agreements of ranks from earlier saves. A training job saves the same tensors again and
/// again. Its plans are then as before, and a rank says so in a few bytes (plan_exchange.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "plan/replica_pattern.h"
#include "plan/save_plan.h"
#include "save/plans/rank_plans.h"
#include "varve/coordinator.h"
#include "varve/hash.h"

namespace varve {

class KeptIndex;

/// Returns the digest that stands for a part of a plan: its structure, or its encoded SpecTable.
Hash128 DigestOfPart(std::string_view part);

/// One rank's part in the settled plan of an earlier save.
struct Agreement {
  Hash128 id;         ///< Of the agreement, the same on all ranks; new for each that is settled.
  Bytes terms;        ///< All that settling depends on besides plans.
  Hash128 tensors;    ///< The digest of this rank's table of tensors, and of its structure.
  Hash128 structure;  ///< As PlanHead has them.
  LocalPlan plan;     ///< This rank's, without its structure.
  RankAssignment assignment;
  ComparedItems compared;
  // On the coordinator alone:
  ReplicaPattern pattern;
  std::vector<std::string> differing_objects;
  std::vector<std::string> differing_tensors;
  std::shared_ptr<const RankPlans> others;
  std::shared_ptr<KeptIndex> index;

  /// Returns about how much memory this takes, without the index.
  [[nodiscard]] std::size_t bytes() const;
};

/// Keeps the last few agreements of a set of ranks: jobs save models and optimizers in turns. A
/// rank may have the same plan in several of them, or none, as the last rank of a short optimizer.
///
/// A rank cannot know whether all others still have the plans of an agreement that it names. Where
/// they have not, one more exchange brings the plans. The coordinator weighs that against the saves
/// in which an agreement holds. Where too many are missed, all ranks forget all, and the
/// coordinator keeps none of what is settled next; then it tries again.
///
/// Threads: any.
class Agreements {
 public:
  static constexpr std::size_t kMost = 4;
  static constexpr std::size_t kMostBytes = std::size_t{512} << 20;
  static constexpr int kMissWeight = 4;  ///< A miss weighs as much as so many agreements that hold.
  static constexpr int kMostWeight = 16;
  static constexpr int kPause = 32;  ///< Settled saves.

  /// Returns those that earlier saves by the same ranks have made.
  static std::shared_ptr<Agreements> Of(Coordinator& coordinator);

  /// Returns the agreements of a plan like this one, the one that was used last first. The sizes of
  /// a few plain values may be others (ChangedSizes).
  std::vector<std::shared_ptr<const Agreement>> Find(const LocalPlan& plan, const Bytes& terms);
  /// Keeps an agreement. One above the limit of memory is not kept: returns false.
  bool Keep(std::shared_ptr<const Agreement> agreement);
  /// Notes that an agreement holds.
  void Use(const Agreement& agreement);
  void Clear();

  /// What becomes of a plan that was settled.
  enum class Next : std::uint8_t {
    kKeep,
    kDrop,
    kClear,  ///< It is dropped, and all ranks forget all agreements.
  };
  /// Notes on the coordinator that plans were settled. `missed`: ranks had named agreements.
  Next Settled(bool missed);

 private:
  struct Kept {
    std::shared_ptr<const Agreement> agreement;
    std::size_t bytes = 0;
  };

  std::mutex mutex_;
  std::list<Kept> kept_;  // All below are guarded by mutex_. The one used last is first.
  int weight_ = 0;
  int pause_ = 0;
};

/// So many values of a rank may have other sizes than in an agreement, and so many bytes in all.
/// That changes headers and the manifest by some ten bytes for each checksum block, which is less
/// than what the limit of manifests leaves: the limits, which are checked when a save is settled,
/// need not be checked anew.
inline constexpr std::size_t kMostChangedSizes = 64;
inline constexpr std::uint64_t kMostChangedBytes = std::uint64_t{64} << 20;

/// Returns true where other sizes are within these limits.
bool MayChange(const std::vector<ObjectSize>& sizes);

/// Returns the sizes of the values of `plan` that are others than in the agreement.
std::vector<ObjectSize> ChangedSizes(const Agreement& agreement, const LocalPlan& plan);

}  // namespace varve
