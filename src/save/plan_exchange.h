/// Brings all ranks' local plans to the coordinator, and their shares back.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "plan/save_plan.h"
#include "varve/coordinator.h"

namespace varve {

/// Returns the part of a rank's first message that is about its plan.
Bytes EncodePlanHead(const LocalPlan& plan);

/// Sends the plan of this rank to the coordinator, and returns what `settle` makes for this rank.
/// Collective: one exchange, or two; the account is in plan_exchange.cc. `first` is the rank's
/// terms and the head of its plan (EncodeTerms), or why it has none; then `plan` is not looked at.
/// `settle` gets the plans of the other ranks, on the coordinator, and returns a reply for each
/// rank, its own included. Each exchange may take `timeout`. Errors: those of Exchange and of
/// AgreeOnTerms; DataLoss naming a rank that has sent something malformed; FailedPrecondition
/// naming one that makes another call.
Result<std::string> ExchangePlans(
    Coordinator& coordinator, std::string_view what, Contribution first,
    const std::vector<LocalPlan>& plan, std::chrono::nanoseconds timeout,
    const std::function<Result<std::vector<std::string>>(std::vector<LocalPlan>)>& settle);

}  // namespace varve
