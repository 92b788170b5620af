/// Exchange A of a coordinated save: the ranks agree on who writes what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/trace.h"
#include "plan/replica_pattern.h"
#include "plan/save_plan.h"
#include "save/plans/agreements.h"
#include "save/plans/plan_exchange.h"
#include "save/plans/rank_plans.h"
#include "save/plans/settle_plans.h"
#include "save/settled.h"
#include "varve/checkpoint.h"
#include "varve/coordinator.h"
#include "varve/options.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

struct SaveShare;
struct SettledShare;

/// One rank's part. Threads: one at a time.
class PlanAgreement {
 public:
  /// A save before it is settled.
  struct Call {
    const State& state;
    const std::string& path;
    const SaveOptions& options;
    Storage& storage;
    bool claims_apart = false;  ///< The name is claimed in a later exchange.
  };

  /// `settled` receives the settled save, and `phases` how long the parts take. Both, and all that
  /// `call` refers to, must outlive this object.
  PlanAgreement(const Call& call, SettledSave* settled, std::vector<Phase>* phases)
      : call_(call), settled_(settled), phases_(phases) {}

  /// Makes the exchange. Collective; a rank that is not `ready` takes part to report why. `claim`
  /// is called on the coordinator once all is settled, and returns SettledSave::claim; its error is
  /// that of all ranks. Errors: the same on all ranks.
  Status Exchange(Coordinator& coordinator, std::string_view what, const Status& ready,
                  const std::function<Result<std::string>()>& claim);
  /// Takes this rank's share. After Exchange; a failure is this rank's alone.
  Status TakeShare();

 private:
  using ClaimFunction = std::function<Result<std::string>()>;

  [[nodiscard]] Bytes Terms() const;
  Status MakePlan(Coordinator& coordinator, const Status& ready);
  Status Complete(int ranks, bool all);
  Status MakeIdentity(std::size_t ranks);
  Result<std::vector<std::string>> Settle(GatheredPlans::Taken others, bool missed,
                                          const ClaimFunction& claim);
  Result<std::vector<Bytes>> CheckAndPlace(SettledPlans* all);
  void Keep(SettledPlans all, bool missed, std::vector<SettledShare>* shares);
  Result<std::vector<std::string>> SettleAsBefore(
      const Agreement& before, std::map<std::uint32_t, std::vector<ObjectSize>> sizes,
      const ClaimFunction& claim);
  [[nodiscard]] SaveShare SharedByAll() const;
  Status TakeBefore(const Hash128& agreement);
  void KeepOwn(const SettledShare& share);
  void ReturnFreedMemory() const;

  const Call call_;
  SettledSave* const settled_;
  std::vector<Phase>* const phases_;
  std::shared_ptr<Agreements> agreements_;                // Null where nothing is kept.
  std::vector<std::shared_ptr<const Agreement>> before_;  // In which the plan is as now.
  std::string reply_;
};

}  // namespace varve
