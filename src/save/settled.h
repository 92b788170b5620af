/// One rank's part in a settled save, as plain data. Any process that has it and a copy of the
/// tensors can write the save.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/fields.h"
#include "plan/file_plan.h"
#include "plan/save_plan.h"
#include "save/plans/rank_plans.h"
#include "varve/checkpoint.h"
#include "varve/metadata.h"

namespace varve {

class KeptIndex;

struct SettledSave {
  Format format = Format::kVarve;
  FileIdentity identity;
  Bytes placement;               ///< WrittenFormat::place of this rank.
  Bytes layout;                  ///< FileWork::layout.
  std::uint64_t shard_size = 0;  ///< SaveOptions::shard_size.
  /// The storage takes a file from one writer alone, and shows it when it is whole.
  bool one_writer = false;
  /// Files are joined from what all ranks have written (WrittenFormat::joined).
  bool joins = false;
  /// Commit::claim of this save; not where another process writes it.
  std::string claim{};
  /// This rank's alone. While a coordinated save is settled they are those of all ranks, by rank,
  /// on the coordinator: `others` has them afterwards.
  std::vector<LocalPlan> plans;
  SettledPlan settled;
  /// While a save is settled, of folded plans: FoldedPlans::hidden.
  std::vector<SharedSpec> hidden;
  /// On the coordinator of a coordinated save, once it is settled.
  std::shared_ptr<const RankPlans> others;
  /// Values of other sizes than in `others`, by rank.
  std::map<std::uint32_t, std::vector<ObjectSize>> sizes;
  /// On the coordinator, in the process that has settled the save, where it keeps what was settled.
  std::shared_ptr<KeptIndex> kept_index;
  /// On the coordinator.
  std::vector<SideFile> side_files;

  /// Returns this rank's own plan, and its part in it.
  [[nodiscard]] const LocalPlan& plan() const { return plans[0]; }
  [[nodiscard]] const RankAssignment& assignment() const { return settled.ranks[0]; }

  /// Puts the sizes that a rank's values have now into its plan. Errors: ApplySizes'.
  Status ApplySizesOf(std::uint32_t rank, LocalPlan* plan) const;

  using Visit = std::function<Status(std::uint32_t rank, const LocalPlan& plan,
                                     const RankAssignment& assignment)>;

  /// Calls `visit` with a rank's plan and what it writes, on the coordinator once the save is
  /// settled. Plans of other ranks are without their structures. Errors: DataLoss; those of
  /// `visit`.
  Status VisitRank(std::uint32_t rank, const Visit& visit) const;
  /// Does the same with all ranks, in their order.
  Status ForEachRank(const Visit& visit) const;
  /// Returns the plans of all ranks, and the settled plan. Errors: as ForEachRank.
  [[nodiscard]] Result<std::pair<std::vector<LocalPlan>, SettledPlan>> OfAllRanks() const;
};

/// For processes of one version of Varve on one machine; never stored.
template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, SettledSave>& save);

}  // namespace varve
