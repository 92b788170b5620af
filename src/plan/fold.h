/// Folded plans: one item stands for many tensors. Most tensors of a model have the dtype, the shape
/// and the sharding of some others. Where they have them on every rank, one settled item serves all
/// of them. So settling costs ranks times shapes, not ranks times tensors.
///
/// A folded item stands for those tensors of a rank's plan that, on each rank that holds any of
/// them, are of one family (spec_table.h). On every rank it stands for the same tensors. A tensor
/// stays alone where a rank has several shards of it, has tied it, or has it as a part of a plain
/// value; where a plain value of some rank has its name; and where a rank has fingerprints of some
/// tensors of its family only. The fingerprint of a folded item is that of all its tensors together,
/// so replicas of it are equal where all of theirs are.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "plan/replica_pattern.h"
#include "plan/save_plan.h"
#include "plan/spec_table.h"
#include "varve/status.h"

namespace varve {

/// A rank's plan as it travels.
struct EncodedPlan {
  const SpecTable* table = nullptr;
  std::string_view shares;
};

/// Maps the items of a rank's folded plan to the items of its plan.
struct Fold {
  /// By folded item: items of the plan. Of several that are the same tensors on all ranks, by name.
  std::vector<std::vector<std::uint32_t>> items;
  std::vector<std::uint32_t> folded;  ///< By item of the plan: the folded one.
  std::vector<std::uint32_t> order;   ///< By item of the plan: the place of its tensor in the file.
};

struct FoldedPlans {
  std::vector<LocalPlan> plans;                    ///< By rank, without structures.
  std::vector<std::shared_ptr<const Fold>> folds;  ///< By rank. Ranks mostly share one.
  /// Each tensor once that folded items stand for without naming it.
  std::vector<SharedSpec> hidden;
};

/// Returns the folded plans of all ranks; nothing where too few ranks have the same families for it
/// to be worth its cost. Untrusted input, which must outlive the call. Errors: DataLoss naming the
/// rank.
Result<std::optional<FoldedPlans>> FoldPlans(std::span<const EncodedPlan> encoded);

/// Returns the assignment of the plan itself, its chunks in the order of a file.
RankAssignment Unfold(const RankAssignment& assignment, const Fold& fold);

/// Returns what the rank compares of the plan itself, which has `objects` plain values.
ComparedItems Unfold(const ComparedItems& compared, const Fold& fold, std::size_t objects);

}  // namespace varve
