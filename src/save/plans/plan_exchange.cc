// The ranks of a job mostly hold shards of the same tensors. Their plans then have names, types,
// shapes and the structure in common. These are larger than the rest: of a plan of 1,000 tensors
// 41 KB. The rest are plain values, a box for all tensors that are of one shape and sharded alike
// (plan/spec_table.h), and 8 KB of fingerprints where other ranks hold the shards too. From save to
// save a rank's plan changes in its contents alone.
//   1. Every rank sends digests of the two common parts, and the rest. Where its plan is as in an
//      earlier save, it sends in place of the rest the number of that agreement, sums over what
//      other ranks hold too (plan/replica_pattern.h), and the sizes of values that have another
//      one; where it is as in several, all that of each.
//   2. The coordinator settles nothing where all ranks name an agreement that it has for its own
//      plan, and their sums show the same pattern: the replies say which, and each rank has its
//      share from that time.
//   3. Else the coordinator needs all plans. It knows its own parts, and those that earlier saves
//      by the same ranks have brought: it keeps them as Coordinator::known_parts. Of ranks whose
//      tensors differ, as in a pipeline, it asks none for them from the second save on, unless
//      these parts exceed its limit. Where it has all, it settles, and the replies are the shares.
//   4. Else the replies say that another exchange follows. They ask the ranks that named an
//      agreement for the rest of their plans, and the lowest rank with each unknown digest for that
//      part. All ranks make that exchange; those that are asked for nothing send a digest of their
//      first message alone. So no rank has to know what the others hold, and one that has given up
//      this save and makes the next one is noticed: its message is not of this exchange, and a
//      reply of this exchange is none to its first message. How often ranks may name agreements for
//      nothing is weighed (agreements.h).
//   5. The coordinator checks each part against its digest, keeps it for later saves where there is
//      memory for it, settles, and sends the shares.
//   6. A rank takes no fingerprint of a shard that it expects to hold alone (save/fingerprint.h).
//      Where the coordinator finds other holders, one more exchange brings the plans of all ranks
//      with all fingerprints. So all replicas are compared before a plan is settled.
// A rank that fails in between contributes its error, as to every exchange.

#include "save/plans/plan_exchange.h"

#include <utility>

#include "base/fields.h"
#include "base/guarded.h"
#include "base/time_source.h"
#include "plan/spec_table.h"
#include "save/plans/gathered_plans.h"
#include "save/plans/terms.h"
#include "varve/hash.h"

namespace varve {
namespace {

/// The first byte of the coordinator's replies: this and the number of the exchange, and the rest
/// is the rank's share; else what the rank is asked for in the next one.
constexpr char kSettled = 16;
/// The heads, the parts that the coordinator does not know, and fingerprints.
constexpr char kMostExchanges = 3;

/// Returns what a rank is asked for; may be nothing.
Result<std::string> EncodePlanParts(const PlanExchange& mine, char asked) {
  PlanParts parts;
  parts.head = DigestOfPart(EncodePlanHead(*mine.plan, mine.before));
  if ((asked & kAskedForTensors) != 0) {
    parts.tensors = SpecTable(*mine.plan).Encode();
  }
  if ((asked & kAskedForStructure) != 0) {
    parts.structure = mine.plan->structure;
  }
  if ((asked & (kAskedForShares | kAskedForFingerprints)) != 0) {
    VARVE_RETURN_IF_ERROR(mine.complete((asked & kAskedForFingerprints) != 0));
    parts.shares = EncodeShares(*mine.plan, SpecTable(*mine.plan));
  }
  return EncodeFields(parts);
}

}  // namespace

Bytes EncodePlanHead(const LocalPlan& plan,
                     const std::vector<std::shared_ptr<const Agreement>>& before) {
  PlanHead head;
  for (const auto& one : before) {
    head.tensors = one->tensors;
    head.structure = one->structure;
    head.before.push_back({one->id, SumsOf(plan, one->compared), ChangedSizes(*one, plan)});
  }
  if (before.empty()) {
    const SpecTable specs(plan);
    head.tensors = DigestOfPart(specs.Encode());
    head.structure = DigestOfPart(plan.structure);
    head.shares = EncodeShares(plan, specs);
  }
  return EncodeFields(head);
}

Result<std::string> ExchangePlans(Coordinator& coordinator, const PlanExchange& mine) {
  char number = 0;         // Of the exchange.
  GatheredPlans gathered;  // On the coordinator.
  bool missed = false;     // Likewise: some rank has named an agreement for nothing.
  bool has_all = false;    // Likewise: the plans have all fingerprints.
  const auto settled = [&](Result<std::vector<std::string>> replies) {
    if (replies.ok()) {
      for (std::string& reply : *replies) {
        reply.insert(reply.begin(), static_cast<char>(kSettled + number));
      }
    }
    return replies;
  };
  const auto settle_all = [&]() -> Result<std::vector<std::string>> {
    VARVE_RETURN_IF_ERROR(mine.complete(has_all));
    VARVE_ASSIGN_OR_RETURN(auto replies, mine.settle(gathered.Take(), missed));
    if (!replies.empty()) {
      return settled(std::move(replies));
    }
    if (has_all) {
      return Internal("ranks have sent plans without the fingerprints that they were asked for");
    }
    has_all = true;
    gathered.WantFingerprints();
    return gathered.Missing();
  };
  const auto take_heads = [&](std::vector<std::string> heads) -> Result<std::vector<std::string>> {
    VARVE_RETURN_IF_ERROR(AgreeOnTerms(&heads));
    VARVE_RETURN_IF_ERROR(gathered.TakeHeads(heads));
    heads.clear();
    for (const auto& before : mine.before) {
      if (gathered.AreAsIn(*before, *mine.plan)) {
        VARVE_ASSIGN_OR_RETURN(auto sizes, gathered.SizesIn(*before));
        return settled(mine.settle_as_before(before, std::move(sizes)));
      }
    }
    missed = gathered.AnyBefore();
    gathered.TakeKnown(*mine.plan, coordinator.known_parts());
    std::vector<std::string> asked = gathered.Missing();
    return asked.empty() ? settle_all() : std::move(asked);
  };
  const auto take_parts =
      [&](const std::vector<std::string>& parts) -> Result<std::vector<std::string>> {
    VARVE_RETURN_IF_ERROR(gathered.TakeParts(parts, coordinator.known_parts()));
    return settle_all();
  };
  const auto first = [&]() -> Contribution {
    VARVE_RETURN_IF_ERROR(CopyOf(mine.ready));
    return mine.terms +
           (coordinator.is_coordinator() ? Bytes() : EncodePlanHead(*mine.plan, mine.before));
  };
  auto reply =
      Exchange(coordinator, mine.what, Guarded(first), Now() + mine.timeout, std::cref(take_heads));
  while (reply.ok() && !reply->empty() && reply->front() < kSettled && mine.ready.ok() &&
         ++number < kMostExchanges) {
    auto parts = Guarded([&]() -> Contribution { return EncodePlanParts(mine, reply->front()); });
    reply = Exchange(coordinator, mine.what, std::move(parts), Now() + mine.timeout,
                     std::cref(take_parts));
  }
  return Guarded([&]() -> Result<std::string> {
    if (reply.ok() && (reply->empty() || reply->front() != kSettled + number)) {
      return FailedPrecondition("the coordinator's reply is to another call").Annotate(mine.what);
    }
    if (reply.ok()) {
      reply->erase(0, 1);
    }
    return std::move(reply);
  });
}

}  // namespace varve
