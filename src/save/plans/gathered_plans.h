/// The messages in which ranks send their plans, and the coordinator's collection of them. The
/// account is in plan_exchange.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "coordinate/known_parts.h"
#include "plan/replica_pattern.h"
#include "plan/save_plan.h"
#include "plan/spec_table.h"
#include "save/plans/agreements.h"
#include "save/plans/rank_plans.h"
#include "varve/hash.h"
#include "varve/status.h"

namespace varve {

/// A plan as in an earlier save.
struct PlanAsBefore {
  Hash128 agreement;
  ReplicaSums sums;
  std::vector<ObjectSize> sizes;
};

/// A rank's first message.
struct PlanHead {
  Hash128 tensors;
  Hash128 structure;
  std::vector<PlanAsBefore> before;  ///< The agreements in which the plan is as now.
  Bytes shares;                      ///< Empty where there are any.
};

/// The parts that a rank was asked for; the others are empty.
struct PlanParts {
  Hash128 head;  ///< Digest of the first message: what was asked for belongs to it.
  Bytes tensors;
  Bytes structure;
  Bytes shares;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, PlanHead>& head);
template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, PlanParts>& parts);

/// The parts of its plan that a rank is asked for are a sum of these; 0 for none.
inline constexpr char kAskedForTensors = 1;
inline constexpr char kAskedForStructure = 2;
inline constexpr char kAskedForShares = 4;
inline constexpr char kAskedForFingerprints = 8;  ///< For shares, with all fingerprints.

/// Gathers the plans of all ranks, on the coordinator.
class GatheredPlans {
 public:
  /// Takes the first messages, by rank; the coordinator's own is not looked at. Untrusted input.
  /// Errors: DataLoss naming the rank.
  Status TakeHeads(const std::vector<std::string>& heads);
  /// Returns true where all ranks name `agreement`, and their sums show its pattern. It is the
  /// coordinator's, whose plan is `own`.
  [[nodiscard]] bool AreAsIn(const Agreement& agreement, const LocalPlan& own) const;
  /// Returns the sizes of values that have another one than in an agreement that all ranks name, by
  /// rank. Errors: DataLoss naming a rank that has no such value, or no such size.
  [[nodiscard]] Result<std::map<std::uint32_t, std::vector<ObjectSize>>> SizesIn(
      const Agreement& agreement) const;
  /// Returns true where some rank has named an agreement and sent no plan.
  [[nodiscard]] bool AnyBefore() const;
  /// Takes the parts that the coordinator's plan has, and those that earlier saves have brought.
  void TakeKnown(const LocalPlan& own, KnownParts& known);
  /// Asks all ranks for their shares with all fingerprints.
  void WantFingerprints() { wants_fingerprints_ = true; }
  /// Returns what ranks have to be asked for, by rank: the first bytes of replies. Empty when the
  /// plans are complete.
  [[nodiscard]] std::vector<std::string> Missing() const;
  /// Takes what was asked for, by rank. Errors: DataLoss naming the rank, also where a part is not
  /// what its digest says. Keeps them in `known`.
  Status TakeParts(const std::vector<std::string>& parts, KnownParts& known);

  /// The plans of the other ranks.
  struct Taken {
    RankPlans plans;
    std::vector<Bytes> structures;  ///< By rank. Of ranks with the same the lowest has it alone.
    std::shared_ptr<const SpecTable> own_table;  ///< The coordinator's; null where it is alone.
  };

  /// Returns them once they are complete. Keeps no shares.
  Taken Take();

 private:
  struct Head {
    Hash128 digest;  ///< Of all of it.
    PlanHead message;
  };

  [[nodiscard]] std::string Asked(std::size_t rank) const;

  std::vector<Head> heads_;  // By rank; the coordinator's has digests alone.
  std::map<Hash128, std::shared_ptr<const SpecTable>> tensors_;
  std::map<Hash128, std::string> structures_;
  std::map<Hash128, std::size_t> first_with_tensors_;  // The lowest rank with a digest.
  std::map<Hash128, std::size_t> first_with_structure_;
  bool wants_fingerprints_ = false;
};

}  // namespace varve
