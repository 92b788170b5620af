/// Brings all ranks' local plans to the coordinator, and their shares back.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "plan/save_plan.h"
#include "save/plans/agreements.h"
#include "save/plans/gathered_plans.h"
#include "save/plans/rank_plans.h"
#include "varve/coordinator.h"
#include "varve/status.h"

namespace varve {

/// One rank's side of an exchange of plans.
struct PlanExchange {
  std::string_view what;  ///< The operation, for messages.
  Bytes terms;            ///< EncodeTerms.
  /// This rank's plan; or why it has none, and then no more of it is looked at.
  Status ready;
  LocalPlan* plan = nullptr;
  /// The agreements in which the plan is as now. Where there are any, the fingerprints of items
  /// that no other rank holds may be missing.
  std::vector<std::shared_ptr<const Agreement>> before;
  std::chrono::nanoseconds timeout{};  ///< Of each exchange.

  /// Fills the fingerprints that are missing, where the whole plan is needed after all; where `all`
  /// is set also those that were left out (kUnhashed).
  std::function<Status(bool all)> complete;
  /// Settles the plans, on the coordinator. `missed`: some rank has named an agreement for nothing.
  /// Returns a reply for each rank, its own included; none where fingerprints lack that were left
  /// out.
  std::function<Result<std::vector<std::string>>(GatheredPlans::Taken others, bool missed)> settle;
  /// Does the same where all plans are as in an agreement. `sizes` has, by rank, the values of
  /// other sizes.
  std::function<Result<std::vector<std::string>>(
      const std::shared_ptr<const Agreement>& before,
      std::map<std::uint32_t, std::vector<ObjectSize>> sizes)>
      settle_as_before;
};

/// Sends the plan of this rank to the coordinator, and returns the reply to this rank. Collective:
/// one exchange, or up to three; the account is in plan_exchange.cc. Errors: those of Exchange and of
/// AgreeOnTerms; DataLoss naming a rank that has sent something malformed; FailedPrecondition
/// naming one that makes another call.
Result<std::string> ExchangePlans(Coordinator& coordinator, const PlanExchange& mine);

/// Returns the part of a rank's first message that is about its plan.
Bytes EncodePlanHead(const LocalPlan& plan,
                     const std::vector<std::shared_ptr<const Agreement>>& before = {});

}  // namespace varve
