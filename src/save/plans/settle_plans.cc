#include "save/plans/settle_plans.h"

#include <cstddef>
#include <map>
#include <utility>

namespace varve {
namespace {

/// Returns the plans as they are.
Result<std::vector<LocalPlan>> DecodeAll(const LocalPlan& own, const RankPlans& others) {
  std::vector<LocalPlan> plans{own};
  plans.reserve(others.world_size());
  for (std::size_t rank = 1; rank < others.world_size(); ++rank) {
    VARVE_ASSIGN_OR_RETURN(LocalPlan plan, others.PlanOf(rank));
    plans.push_back(std::move(plan));
  }
  return plans;
}

Result<std::optional<FoldedPlans>> FoldAll(const LocalPlan& own,
                                           const GatheredPlans::Taken& others) {
  const Bytes shares = EncodeShares(own, *others.own_table);
  std::vector<EncodedPlan> encoded{{others.own_table.get(), shares}};
  for (std::size_t rank = 1; rank < others.plans.world_size(); ++rank) {
    encoded.push_back(others.plans.Encoded(rank));
  }
  return FoldPlans(encoded);
}

/// Settles `all->plans`.
Status SettleThem(const LocalPlan& own, const GatheredPlans::Taken& others,
                  const SettleTerms& terms, SettledPlans* all) {
  all->plans[0].structure = own.structure;
  for (std::size_t rank = 1; rank < all->plans.size(); ++rank) {
    all->plans[rank].structure = others.structures[rank];
  }
  if (terms.has_pattern) {
    all->pattern.emplace(all->plans);
  }
  VARVE_ASSIGN_OR_RETURN(
      all->settled,
      Settle(all->plans, terms.differing, all->pattern ? &*all->pattern : nullptr, terms.replicas));
  return Status::Ok();
}

}  // namespace

Result<SettledPlans> SettlePlans(const LocalPlan& own, const GatheredPlans::Taken& others,
                                 const SettleTerms& terms) {
  SettledPlans all;
  std::optional<FoldedPlans> folded;
  if (terms.may_fold && others.own_table != nullptr) {
    VARVE_ASSIGN_OR_RETURN(folded, FoldAll(own, others));
  }
  if (folded) {
    all.plans = std::move(folded->plans);
    all.folds = std::move(folded->folds);
    all.hidden = std::move(folded->hidden);
    VARVE_RETURN_IF_ERROR(SettleThem(own, others, terms, &all));
    if (!all.settled.lacks_fingerprints) {
      return all;
    }
    all = {};
  }
  VARVE_ASSIGN_OR_RETURN(all.plans, DecodeAll(own, others.plans));
  VARVE_RETURN_IF_ERROR(SettleThem(own, others, terms, &all));
  return all;
}

std::vector<std::shared_ptr<const Bytes>> SettledPlans::Assignments() const {
  std::vector<std::shared_ptr<const Bytes>> encoded;
  encoded.reserve(plans.size());
  std::map<std::pair<const Fold*, Bytes>, std::shared_ptr<const Bytes>> known;  // Looked up only.
  for (std::size_t rank = 0; rank < settled.ranks.size(); ++rank) {
    const RankAssignment& assignment = settled.ranks[rank];
    Bytes bytes = EncodeAssignment(assignment);
    if (folds.empty()) {
      encoded.push_back(std::make_shared<const Bytes>(std::move(bytes)));
      continue;
    }
    ByteWriter out(&bytes);
    for (const ChunkAssignment& chunk : assignment.chunks) {
      out.Varint(chunk.member);
    }
    const auto [at, is_new] = known.try_emplace({folds[rank].get(), std::move(bytes)});
    if (is_new) {
      at->second =
          std::make_shared<const Bytes>(EncodeAssignment(Unfold(assignment, *folds[rank])));
    }
    encoded.push_back(at->second);
  }
  return encoded;
}

std::vector<ComparedItems> SettledPlans::FinishPattern() {
  std::vector<ComparedItems> compared = pattern->Finish();
  for (std::size_t rank = 0; rank < compared.size() && !folds.empty(); ++rank) {
    compared[rank] = Unfold(compared[rank], *folds[rank], plans[rank].objects.size());
  }
  return compared;
}

}  // namespace varve
