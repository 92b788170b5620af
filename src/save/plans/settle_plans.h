/// Settles what GatheredPlans has gathered: folded (plan/fold.h) where that is possible.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "plan/fold.h"
#include "plan/replica_pattern.h"
#include "plan/save_plan.h"
#include "save/plans/gathered_plans.h"
#include "varve/status.h"

namespace varve {

/// How plans are settled.
struct SettleTerms {
  Differing differing = Differing::kFirst;
  Replicas replicas = Replicas::kCut;
  bool has_pattern = false;  ///< SettledPlans::pattern is wanted.
  bool may_fold = false;     ///< What follows can look at folded plans.
};

/// The settled plans of all ranks, on the coordinator.
struct SettledPlans {
  std::vector<LocalPlan> plans;  ///< By rank; folded where `folds` is not empty.
  SettledPlan settled;           ///< Of these plans.
  std::vector<std::shared_ptr<const Fold>> folds;
  std::vector<SharedSpec> hidden;  ///< FoldedPlans::hidden.
  std::optional<ReplicaPattern> pattern;

  /// Returns what each rank writes of its own plan, encoded. Many ranks share one.
  [[nodiscard]] std::vector<std::shared_ptr<const Bytes>> Assignments() const;
  /// Returns what each rank compares of its own plan, and ends the pattern, which must be there.
  /// Empty where a rank would have too many sums.
  std::vector<ComparedItems> FinishPattern();
};

/// `own` is the coordinator's plan. Where SettledPlan::lacks_fingerprints is set in what it
/// returns, the plans must be gathered with all fingerprints. Errors: those of Settle; DataLoss
/// naming a rank whose plan is malformed.
Result<SettledPlans> SettlePlans(const LocalPlan& own, const GatheredPlans::Taken& others,
                                 const SettleTerms& terms);

}  // namespace varve
