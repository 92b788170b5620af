/// What the ranks have agreed on in earlier saves. A training job saves the same tensors again and
/// again; its plans are then as before, and a rank says so in a few bytes (plan_exchange.cc).
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "plan/replica_pattern.h"
#include "plan/save_plan.h"
#include "save/plans/rank_plans.h"
#include "varve/coordinator.h"
#include "varve/hash.h"

namespace varve {

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

  /// Returns about how much memory this takes.
  [[nodiscard]] std::size_t bytes() const;
};

/// Keeps the last few agreements of a set of ranks: jobs save models and optimizers in turns.
/// Threads: any.
class Agreements {
 public:
  static constexpr std::size_t kMost = 4;

  explicit Agreements(std::size_t most_bytes = std::size_t{512} << 20) : most_bytes_(most_bytes) {}

  /// Returns those that earlier saves by the same ranks have made.
  static std::shared_ptr<Agreements> Of(Coordinator& coordinator);

  /// Returns the agreement of a plan like this one; null where there is none. The sizes of a few
  /// plain values may be others (ChangedSizes).
  std::shared_ptr<const Agreement> Find(const LocalPlan& plan, const Bytes& terms);
  /// Keeps an agreement. One above the limit of memory is not kept: returns false.
  bool Keep(std::shared_ptr<const Agreement> agreement);

 private:
  const std::size_t most_bytes_;
  std::mutex mutex_;
  std::list<std::shared_ptr<const Agreement>> kept_;  // Guarded by mutex_. The last used is first.
};

/// Returns the sizes of the values of `plan` that are others than in the agreement.
std::vector<ObjectSize> ChangedSizes(const Agreement& agreement, const LocalPlan& plan);

}  // namespace varve
