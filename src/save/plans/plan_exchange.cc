// The ranks of a job mostly hold shards of the same tensors. Their plans then have names, types,
// shapes and the structure in common. These are larger than the rest: of the 56 KB of a plan of
// 1,000 tensors, 15 KB are boxes, fingerprints and plain values. And from save to save a rank's plan
// changes in its contents alone.
//   1. Every rank sends digests of the two common parts, and the rest. Where its plan is as in an
//      earlier save, it sends in place of the rest the number of that agreement, sums over what
//      other ranks hold too (plan/replica_pattern.h), and the sizes of values that have another one.
//   2. The coordinator settles nothing where all ranks name the agreement that it has for its own
//      plan, and their sums show the same pattern: the replies say so, and each rank has its share
//      from that time. A rank that has lost an agreement, or has another one, sends its plan.
//   3. Else the coordinator needs all plans. It knows its own parts, and those that earlier saves by
//      the same ranks have brought: it keeps them as Coordinator::known_parts. So ranks whose
//      tensors differ, as in a pipeline, make one exchange from the second save on, unless these
//      parts exceed its limit. Where it has all, it settles, and the replies are the shares.
//   4. Else the replies say that another exchange follows. They ask the ranks that named an
//      agreement for the rest of their plans, and the lowest rank with each unknown digest for that
//      part. All ranks make that exchange; those that are asked for nothing send a digest of their
//      first message alone. So no rank has to know what the others hold, and one that has given up
//      this save and makes the next one is noticed: its message is not of this exchange, and a reply
//      of this exchange is none to its first message.
//   5. The coordinator checks each part against its digest, keeps it for later saves where there is
//      memory for it, settles, and sends the shares.
// A rank that fails in between contributes its error, as to every exchange.

#include "save/plans/plan_exchange.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "base/checksum.h"
#include "base/fields.h"
#include "base/guarded.h"
#include "base/time_source.h"
#include "coordinate/known_parts.h"
#include "plan/fields.h"
#include "plan/spec_table.h"
#include "save/plans/terms.h"
#include "varve/hash.h"

namespace varve {

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, ReplicaSums>& sums) {
  archive(sums.groups, sums.differing);
}

/// A plan as in an earlier save.
struct PlanAsBefore {
  Hash128 agreement;
  ReplicaSums sums;
  std::vector<ObjectSize> sizes;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, PlanAsBefore>& before) {
  archive(before.agreement, before.sums, before.sizes);
}

/// A rank's first message.
struct PlanHead {
  Hash128 tensors;
  Hash128 structure;
  std::optional<PlanAsBefore> before;
  Bytes shares;  ///< Empty where the plan is as before.
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, PlanHead>& head) {
  archive(head.tensors, head.structure, head.before, head.shares);
}

/// The parts that a rank was asked for; the others are empty.
struct PlanParts {
  Hash128 head;  ///< Digest of the first message: what was asked for belongs to it.
  Bytes tensors;
  Bytes structure;
  Bytes shares;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, PlanParts>& parts) {
  archive(parts.head, parts.shares, parts.tensors, parts.structure);
}

namespace {

/// The first byte of the coordinator's replies: kSettled, or kSettledWithParts in the second
/// exchange, where the rest is the rank's share; else the parts of its plan that the rank is to
/// send, a sum of the first three, or 0 for none.
constexpr char kAskedForTensors = 1;
constexpr char kAskedForStructure = 2;
constexpr char kAskedForShares = 4;
constexpr char kSettled = 8;
constexpr char kSettledWithParts = 16;

Hash128 DigestOf(std::string_view part) { return Xxh3(AsByteSpan(part)); }

/// Returns what a rank is asked for; may be nothing.
Result<std::string> EncodePlanParts(const PlanExchange& mine, char asked) {
  PlanParts parts;
  parts.head = DigestOf(EncodePlanHead(*mine.plan, mine.before));
  if ((asked & kAskedForTensors) != 0) {
    parts.tensors = SpecTable(*mine.plan).Encode();
  }
  if ((asked & kAskedForStructure) != 0) {
    parts.structure = mine.plan->structure;
  }
  if ((asked & kAskedForShares) != 0) {
    VARVE_RETURN_IF_ERROR(mine.complete());
    parts.shares = EncodeShares(*mine.plan, SpecTable(*mine.plan));
  }
  return EncodeFields(parts);
}

/// Gathers the plans of all ranks, on the coordinator.
class GatheredPlans {
 public:
  /// Takes the first messages, by rank, but the coordinator's own, whose plan is `own`. Untrusted
  /// input. Errors: DataLoss naming the rank.
  Status TakeHeads(const LocalPlan& own, const std::vector<std::string>& heads);
  /// Returns true where the plans of all ranks are as in `agreement`, the coordinator's.
  [[nodiscard]] bool AreAsIn(const Agreement& agreement, const LocalPlan& own) const;
  /// Returns the sizes of values that have another one than in the agreement, by rank.
  [[nodiscard]] std::map<std::uint32_t, std::vector<ObjectSize>> TakeSizes();
  /// Takes the parts that earlier saves have brought.
  void TakeKnown(KnownParts& known);
  /// Returns what ranks have to be asked for, by rank: the first bytes of replies. Empty when the
  /// plans are complete.
  [[nodiscard]] std::vector<std::string> Missing() const;
  /// Takes what was asked for, by rank. Errors: DataLoss naming the rank, also where a part is not
  /// what its digest says. Keeps them in `known`.
  Status TakeParts(const std::vector<std::string>& parts, KnownParts& known);

  /// Returns the plans of the other ranks, once they are complete, and adds them to `encoded`. Keeps
  /// nothing. Of ranks with the same structure the lowest has it, the others have none.
  Result<std::vector<LocalPlan>> Take(RankPlans* encoded);

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
};

Status GatheredPlans::TakeHeads(const LocalPlan& own, const std::vector<std::string>& heads) {
  if (heads.size() < 2) {
    return Status::Ok();
  }
  auto specs = std::make_shared<const SpecTable>(own);
  PlanHead& mine = heads_.emplace_back().message;
  mine.tensors = DigestOf(specs->Encode());
  mine.structure = DigestOf(own.structure);
  tensors_.emplace(mine.tensors, std::move(specs));
  structures_.emplace(mine.structure, std::string());  // Its own plan has it.
  const auto none = std::make_shared<const SpecTable>();
  tensors_.emplace(DigestOf(none->Encode()), none);
  structures_.emplace(DigestOf({}), std::string());
  first_with_tensors_.emplace(mine.tensors, 0);
  first_with_structure_.emplace(mine.structure, 0);
  heads_.reserve(heads.size());
  for (std::size_t rank = 1; rank < heads.size(); ++rank) {
    auto head = DecodeFields<PlanHead>(heads[rank]);
    if (!head.ok()) {
      return AnnotatePlan(head.status(), rank);
    }
    first_with_tensors_.emplace(head->tensors, rank);
    first_with_structure_.emplace(head->structure, rank);
    heads_.push_back({DigestOf(heads[rank]), std::move(*head)});
  }
  return Status::Ok();
}

bool GatheredPlans::AreAsIn(const Agreement& agreement, const LocalPlan& own) const {
  std::vector<ReplicaSums> sums;
  sums.reserve(heads_.size());
  sums.push_back(SumsOf(own, agreement.compared));
  for (std::size_t rank = 1; rank < heads_.size(); ++rank) {
    const auto& before = heads_[rank].message.before;
    if (!before || before->agreement != agreement.id) {
      return false;
    }
    sums.push_back(before->sums);
  }
  return agreement.pattern.IsThatOf(sums);
}

std::map<std::uint32_t, std::vector<ObjectSize>> GatheredPlans::TakeSizes() {
  std::map<std::uint32_t, std::vector<ObjectSize>> sizes;
  for (std::size_t rank = 1; rank < heads_.size(); ++rank) {
    auto& before = heads_[rank].message.before;
    if (before && !before->sizes.empty()) {
      sizes.emplace(static_cast<std::uint32_t>(rank), std::move(before->sizes));
    }
  }
  return sizes;
}

void GatheredPlans::TakeKnown(KnownParts& known) {
  for (const auto& [digest, rank] : first_with_tensors_) {
    const auto part = tensors_.contains(digest) ? std::nullopt : known.Find(digest);
    if (part) {
      auto table = SpecTable::Decode(*part);
      if (table.ok()) {  // Else the rank announced another kind of part, and is asked.
        tensors_.emplace(digest, std::make_shared<const SpecTable>(std::move(*table)));
      }
    }
  }
  for (const auto& [digest, rank] : first_with_structure_) {
    auto part = structures_.contains(digest) ? std::nullopt : known.Find(digest);
    if (part) {
      structures_.emplace(digest, std::move(*part));
    }
  }
}

/// Keeps a part for later saves. Without memory it is asked for again.
void Keep(const Hash128& digest, const std::string& part, KnownParts* known) {
  (void)Guarded([&] {
    known->Keep(digest, part);
    return Status::Ok();
  });
}

std::string GatheredPlans::Asked(std::size_t rank) const {
  const PlanHead& head = heads_[rank].message;
  char asked = head.before ? kAskedForShares : char{0};
  if (!tensors_.contains(head.tensors) && first_with_tensors_.at(head.tensors) == rank) {
    asked |= kAskedForTensors;
  }
  if (!structures_.contains(head.structure) && first_with_structure_.at(head.structure) == rank) {
    asked |= kAskedForStructure;
  }
  return std::string(1, asked);
}

std::vector<std::string> GatheredPlans::Missing() const {
  std::vector<std::string> asked;
  asked.reserve(heads_.size());
  bool any = false;
  for (std::size_t rank = 0; rank < heads_.size(); ++rank) {
    asked.push_back(Asked(rank));
    any = any || asked.back().front() != 0;
  }
  return any ? asked : std::vector<std::string>();
}

Status GatheredPlans::TakeParts(const std::vector<std::string>& parts, KnownParts& known) {
  for (std::size_t rank = 1; rank < parts.size() && rank < heads_.size(); ++rank) {
    const char asked = Asked(rank)[0];
    PlanHead& head = heads_[rank].message;
    auto sent = DecodeFields<PlanParts>(parts[rank]);
    if (!sent.ok() || sent->head != heads_[rank].digest) {
      return FailedPrecondition("rank " + std::to_string(rank) +
                                " has sent no part of its plan: it makes another call. All ranks "
                                "must make the same calls in the same order");
    }
    if (((asked & kAskedForTensors) != 0 && DigestOf(sent->tensors) != head.tensors) ||
        ((asked & kAskedForStructure) != 0 && DigestOf(sent->structure) != head.structure)) {
      return AnnotatePlan(DataLoss("the rank has sent another part than it announced"), rank);
    }
    if ((asked & kAskedForTensors) != 0) {
      auto table = SpecTable::Decode(sent->tensors);
      if (!table.ok()) {
        return AnnotatePlan(table.status(), rank);
      }
      tensors_.emplace(head.tensors, std::make_shared<const SpecTable>(std::move(*table)));
      Keep(head.tensors, sent->tensors, &known);
    }
    if ((asked & kAskedForStructure) != 0) {
      Keep(head.structure, sent->structure, &known);
      structures_.emplace(head.structure, std::move(sent->structure));
    }
    if ((asked & kAskedForShares) != 0) {
      head.shares = std::move(sent->shares);
      head.before.reset();
    }
  }
  return Status::Ok();
}

Result<std::vector<LocalPlan>> GatheredPlans::Take(RankPlans* encoded) {
  std::vector<LocalPlan> plans;
  plans.reserve(heads_.size());
  for (std::size_t rank = 1; rank < heads_.size(); ++rank) {
    PlanHead& head = heads_[rank].message;
    encoded->Add(tensors_.at(head.tensors), std::move(head.shares));
    VARVE_ASSIGN_OR_RETURN(LocalPlan plan, encoded->PlanOf(rank));
    if (first_with_structure_.at(head.structure) == rank) {
      plan.structure = std::move(structures_.at(head.structure));
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace

Hash128 DigestOfTensors(const LocalPlan& plan) { return DigestOf(SpecTable(plan).Encode()); }

Hash128 DigestOfStructure(const LocalPlan& plan) { return DigestOf(plan.structure); }

Bytes EncodePlanHead(const LocalPlan& plan, const Agreement* before) {
  PlanHead head;
  if (before != nullptr) {
    head.tensors = before->tensors;
    head.structure = before->structure;
    head.before =
        PlanAsBefore{before->id, SumsOf(plan, before->compared), ChangedSizes(*before, plan)};
  } else {
    const SpecTable specs(plan);
    head.tensors = DigestOf(specs.Encode());
    head.structure = DigestOfStructure(plan);
    head.shares = EncodeShares(plan, specs);
  }
  return EncodeFields(head);
}

Result<std::string> ExchangePlans(Coordinator& coordinator, const PlanExchange& mine) {
  GatheredPlans gathered;  // On the coordinator.
  const auto settled = [](Result<std::vector<std::string>> replies, char with) {
    if (replies.ok()) {
      for (std::string& reply : *replies) {
        reply.insert(reply.begin(), with);
      }
    }
    return replies;
  };
  const auto settle_all = [&](char with) -> Result<std::vector<std::string>> {
    VARVE_RETURN_IF_ERROR(mine.complete());
    RankPlans encoded;
    VARVE_ASSIGN_OR_RETURN(std::vector<LocalPlan> others, gathered.Take(&encoded));
    return settled(mine.settle(std::move(others), std::move(encoded)), with);
  };
  const auto take_heads = [&](std::vector<std::string> heads) -> Result<std::vector<std::string>> {
    VARVE_RETURN_IF_ERROR(AgreeOnTerms(&heads));
    VARVE_RETURN_IF_ERROR(gathered.TakeHeads(*mine.plan, heads));
    heads.clear();
    if (mine.before != nullptr && gathered.AreAsIn(*mine.before, *mine.plan)) {
      return settled(mine.settle_as_before(gathered.TakeSizes()), kSettled);
    }
    gathered.TakeKnown(coordinator.known_parts());
    std::vector<std::string> asked = gathered.Missing();
    return asked.empty() ? settle_all(kSettled) : std::move(asked);
  };
  const auto take_parts =
      [&](const std::vector<std::string>& parts) -> Result<std::vector<std::string>> {
    VARVE_RETURN_IF_ERROR(gathered.TakeParts(parts, coordinator.known_parts()));
    return settle_all(kSettledWithParts);
  };
  const auto first = [&]() -> Contribution {
    VARVE_RETURN_IF_ERROR(CopyOf(mine.ready));
    return mine.terms +
           (coordinator.is_coordinator() ? Bytes() : EncodePlanHead(*mine.plan, mine.before));
  };
  auto reply = Exchange(coordinator, mine.what, Guarded(first), Now() + mine.timeout,
                        std::cref(take_heads));
  char with = kSettled;
  if (reply.ok() && !reply->empty() && reply->front() < kSettled && mine.ready.ok()) {
    with = kSettledWithParts;
    auto parts =
        Guarded([&]() -> Contribution { return EncodePlanParts(mine, reply->front()); });
    reply = Exchange(coordinator, mine.what, std::move(parts), Now() + mine.timeout,
                     std::cref(take_parts));
  }
  return Guarded([&]() -> Result<std::string> {
    if (reply.ok() && (reply->empty() || reply->front() != with)) {
      return FailedPrecondition("the coordinator's reply is to another call").Annotate(mine.what);
    }
    if (reply.ok()) {
      reply->erase(0, 1);
    }
    return std::move(reply);
  });
}

}  // namespace varve
