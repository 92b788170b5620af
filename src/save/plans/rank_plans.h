/// The plans of all ranks of a settled save but the coordinator's own, and what each rank writes,
/// as they travel. So they take a tenth of the memory that plans take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/fields.h"
#include "plan/fold.h"
#include "plan/save_plan.h"
#include "plan/spec_table.h"
#include "varve/status.h"

namespace varve {

/// The size of a plain value that has another one than in the plan.
struct ObjectSize {
  std::uint32_t item = 0;  ///< Into LocalPlan::objects.
  std::uint64_t bytes = 0;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, ObjectSize>& size) {
  archive(size.item, size.bytes);
}

/// Puts sizes of values into a plan. Errors: DataLoss where the plan has no such value.
Status ApplySizes(const std::vector<ObjectSize>& sizes, LocalPlan* plan);

/// Returns an error that names the rank whose plan it is about.
Status AnnotatePlan(const Status& status, std::size_t rank);

/// Threads: any, once it is complete.
class RankPlans {
 public:
  /// Adds the plan of the next rank, the first of which is rank 1. `specs` is what `shares` was
  /// encoded with (EncodeShares).
  void Add(std::shared_ptr<const SpecTable> specs, Bytes shares);
  /// Sets what the ranks write, encoded, by rank; that of rank 0 is left out.
  void SetAssignments(const std::vector<std::shared_ptr<const Bytes>>& ranks);

  [[nodiscard]] std::size_t world_size() const { return ranks_.size() + 1; }
  /// Returns about how much memory this takes.
  [[nodiscard]] std::size_t bytes() const;

  /// Returns the plan of rank 1 or a higher one as it travels, while this lives.
  [[nodiscard]] EncodedPlan Encoded(std::size_t rank) const {
    return {tables_[ranks_[rank - 1].table].get(), ranks_[rank - 1].shares};
  }
  /// Returns the number of plain values in the plan of a rank.
  [[nodiscard]] std::uint64_t ObjectsOf(std::size_t rank) const;
  /// Returns the plan of rank 1 or a higher one, without its structure. Errors: DataLoss naming it.
  [[nodiscard]] Result<LocalPlan> PlanOf(std::size_t rank) const;
  /// Returns true where two of these ranks write the same items of their plans.
  [[nodiscard]] bool HaveOneAssignment(std::size_t a, std::size_t b) const {
    const std::shared_ptr<const Bytes>& first = ranks_[a - 1].assignment;
    const std::shared_ptr<const Bytes>& second = ranks_[b - 1].assignment;
    return first == second || *first == *second;
  }
  /// Returns what that rank writes. Errors: DataLoss naming it.
  [[nodiscard]] Result<RankAssignment> AssignmentOf(std::size_t rank) const;

 private:
  struct Rank {
    std::uint32_t table = 0;
    Bytes shares;
    std::shared_ptr<const Bytes> assignment;  ///< Many ranks have the same.
  };

  template <class Archive>
  friend void Fields(Archive& archive, FieldsOf<Archive, RankPlans>& plans);
  template <class Archive>
  friend void Fields(Archive& archive, FieldsOf<Archive, RankPlans::Rank>& rank);

  std::vector<std::shared_ptr<const SpecTable>> tables_;
  std::map<const SpecTable*, std::uint32_t> numbers_;  // Looked up only.
  std::vector<Rank> ranks_;                            // From rank 1 on.
};

/// For processes of one version of Varve on one machine; never stored.
template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, RankPlans>& plans);

}  // namespace varve
