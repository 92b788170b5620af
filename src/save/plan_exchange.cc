// The ranks of a job mostly hold shards of the same tensors. Their plans then have names, types,
// shapes and the structure in common. These are larger than the rest: of the 56 KB of a plan of
// 1,000 tensors, 15 KB are boxes, fingerprints and plain values.
//   1. Every rank sends digests of these two parts, and the rest. The coordinator knows its own
//      parts, and those that earlier saves by the same ranks have brought: it keeps them as
//      Coordinator::known_parts. So ranks whose tensors differ, as in a pipeline, make one exchange
//      from the second save on, unless these parts exceed its limit.
//   2. Where it knows all, it settles, and the replies are the ranks' shares.
//   3. Else the replies say that another exchange follows, and ask the lowest rank with each
//      unknown digest for the part. All ranks make that exchange; those that are asked for nothing
//      send a digest of their first message alone. So no rank has to know what the others hold, and
//      one that has given up this save and makes the next one is noticed: its message is not of
//      this exchange, and a reply of this exchange is none to its first message.
//   4. The coordinator checks each part against its digest, keeps it for later saves where there is
//      memory for it, settles, and sends the shares.
// A rank that fails in between contributes its error, as to every exchange.

#include "save/plan_exchange.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "base/checksum.h"
#include "base/fields.h"
#include "base/guarded.h"
#include "base/time_source.h"
#include "coordinate/known_parts.h"
#include "plan/spec_table.h"
#include "save/terms.h"
#include "varve/hash.h"

namespace varve {

/// A rank's first message.
struct PlanHead {
  Hash128 tensors;
  Hash128 structure;
  Bytes shares;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, PlanHead>& head) {
  archive(head.tensors.bytes, head.structure.bytes, head.shares);
}

/// The parts that a rank was asked for; the others are empty.
struct PlanParts {
  Hash128 head;  ///< Digest of the first message: what was asked for belongs to it.
  Bytes tensors;
  Bytes structure;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, PlanParts>& parts) {
  archive(parts.head.bytes, parts.tensors, parts.structure);
}

namespace {

/// The first byte of the coordinator's replies: kSettled, or kSettledWithParts in the second
/// exchange, where the rest is the rank's share; else the parts of its plan that the rank is to
/// send, a sum of the other two, or 0 for none.
constexpr char kAskedForTensors = 1;
constexpr char kAskedForStructure = 2;
constexpr char kSettled = 4;
constexpr char kSettledWithParts = 8;

Hash128 DigestOf(std::string_view part) { return Xxh3(AsByteSpan(part)); }

Status OfRank(const Status& status, std::size_t rank) {
  return CopyOf(status).Annotate("plan of rank " + std::to_string(rank));
}

/// Returns what a rank is asked for; may be nothing.
Bytes EncodePlanParts(const LocalPlan& plan, char asked) {
  PlanParts parts;
  parts.head = DigestOf(EncodePlanHead(plan));
  if ((asked & kAskedForTensors) != 0) {
    parts.tensors = SpecTable(plan).Encode();
  }
  if ((asked & kAskedForStructure) != 0) {
    parts.structure = plan.structure;
  }
  return EncodeFields(parts);
}

/// Gathers the plans of all ranks, on the coordinator.
class GatheredPlans {
 public:
  /// Takes the first messages, by rank, but the coordinator's own, whose plan is `own`. Untrusted
  /// input. Errors: DataLoss naming the rank.
  Status TakeHeads(const LocalPlan& own, const std::vector<std::string>& heads);
  /// Takes the parts that earlier saves have brought.
  void TakeKnown(KnownParts& known);
  /// Returns what ranks have to be asked for, by rank: the first bytes of replies. Empty when the
  /// plans are complete.
  [[nodiscard]] std::vector<std::string> Missing() const;
  /// Takes what was asked for, by rank. Errors: DataLoss naming the rank, also where a part is not
  /// what its digest says. Keeps them in `known`.
  Status TakeParts(const std::vector<std::string>& parts, KnownParts& known);

  /// Returns the plans of the other ranks, once they are complete, and keeps nothing. Of ranks
  /// with the same structure the lowest has it, the others have none.
  Result<std::vector<LocalPlan>> Take();

 private:
  struct Head {
    Hash128 digest;  ///< Of all of it.
    Hash128 tensors;
    Hash128 structure;
    std::string shares;
  };

  [[nodiscard]] std::string Asked(std::size_t rank) const;

  std::vector<Head> heads_;  // By rank; the coordinator's has digests alone.
  std::map<Hash128, SpecTable> tensors_;
  std::map<Hash128, std::string> structures_;
  std::map<Hash128, std::size_t> first_with_tensors_;  // The lowest rank with a digest.
  std::map<Hash128, std::size_t> first_with_structure_;
};

Status GatheredPlans::TakeHeads(const LocalPlan& own, const std::vector<std::string>& heads) {
  if (heads.size() < 2) {
    return Status::Ok();
  }
  SpecTable specs(own);
  Head& mine = heads_.emplace_back();
  mine.tensors = DigestOf(specs.Encode());
  mine.structure = DigestOf(own.structure);
  tensors_.emplace(mine.tensors, std::move(specs));
  structures_.emplace(mine.structure, std::string());  // Its own plan has it.
  const SpecTable none;
  tensors_.emplace(DigestOf(none.Encode()), none);
  structures_.emplace(DigestOf({}), std::string());
  first_with_tensors_.emplace(mine.tensors, 0);
  first_with_structure_.emplace(mine.structure, 0);
  for (std::size_t rank = 1; rank < heads.size(); ++rank) {
    auto head = DecodeFields<PlanHead>(heads[rank]);
    if (!head.ok()) {
      return OfRank(head.status(), rank);
    }
    first_with_tensors_.emplace(head->tensors, rank);
    first_with_structure_.emplace(head->structure, rank);
    heads_.push_back(
        {DigestOf(heads[rank]), head->tensors, head->structure, std::move(head->shares)});
  }
  return Status::Ok();
}

void GatheredPlans::TakeKnown(KnownParts& known) {
  for (const auto& [digest, rank] : first_with_tensors_) {
    const auto part = tensors_.contains(digest) ? std::nullopt : known.Find(digest);
    if (part) {
      auto table = SpecTable::Decode(*part);
      if (table.ok()) {  // Else the rank announced another kind of part, and is asked.
        tensors_.emplace(digest, std::move(*table));
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
  const Head& head = heads_[rank];
  char asked = 0;
  if (!tensors_.contains(head.tensors) && first_with_tensors_.at(head.tensors) == rank) {
    asked |= kAskedForTensors;
  }
  if (!structures_.contains(head.structure) && first_with_structure_.at(head.structure) == rank) {
    asked |= kAskedForStructure;
  }
  return std::string(1, asked);
}

std::vector<std::string> GatheredPlans::Missing() const {
  const auto is_known_in = [](const auto& known) {
    return [&known](const auto& seen) { return known.contains(seen.first); };
  };
  if (std::all_of(first_with_tensors_.begin(), first_with_tensors_.end(), is_known_in(tensors_)) &&
      std::all_of(first_with_structure_.begin(), first_with_structure_.end(),
                  is_known_in(structures_))) {
    return {};
  }
  std::vector<std::string> asked;
  asked.reserve(heads_.size());
  for (std::size_t rank = 0; rank < heads_.size(); ++rank) {
    asked.push_back(Asked(rank));
  }
  return asked;
}

Status GatheredPlans::TakeParts(const std::vector<std::string>& parts, KnownParts& known) {
  for (std::size_t rank = 1; rank < parts.size() && rank < heads_.size(); ++rank) {
    const char asked = Asked(rank)[0];
    const Head& head = heads_[rank];
    auto sent = DecodeFields<PlanParts>(parts[rank]);
    if (!sent.ok() || sent->head != head.digest) {
      return FailedPrecondition("rank " + std::to_string(rank) +
                                " has sent no part of its plan: it makes another call. All ranks "
                                "must make the same calls in the same order");
    }
    if (((asked & kAskedForTensors) != 0 && DigestOf(sent->tensors) != head.tensors) ||
        ((asked & kAskedForStructure) != 0 && DigestOf(sent->structure) != head.structure)) {
      return OfRank(DataLoss("the rank has sent another part than it announced"), rank);
    }
    if ((asked & kAskedForTensors) != 0) {
      auto table = SpecTable::Decode(sent->tensors);
      if (!table.ok()) {
        return OfRank(table.status(), rank);
      }
      tensors_.emplace(head.tensors, std::move(*table));
      Keep(head.tensors, sent->tensors, &known);
    }
    if ((asked & kAskedForStructure) != 0) {
      Keep(head.structure, sent->structure, &known);
      structures_.emplace(head.structure, std::move(sent->structure));
    }
  }
  return Status::Ok();
}

Result<std::vector<LocalPlan>> GatheredPlans::Take() {
  std::vector<LocalPlan> plans;
  plans.reserve(heads_.size());
  for (std::size_t rank = 1; rank < heads_.size(); ++rank) {
    Head& head = heads_[rank];
    auto plan = DecodeShares(head.shares, tensors_.at(head.tensors));
    if (!plan.ok()) {
      return OfRank(plan.status(), rank);
    }
    head.shares = {};
    if (first_with_structure_.at(head.structure) == rank) {
      plan->structure = std::move(structures_.at(head.structure));
    }
    plans.push_back(std::move(*plan));
  }
  return plans;
}

}  // namespace

Bytes EncodePlanHead(const LocalPlan& plan) {
  const SpecTable specs(plan);
  return EncodeFields(
      PlanHead{DigestOf(specs.Encode()), DigestOf(plan.structure), EncodeShares(plan, specs)});
}

Result<std::string> ExchangePlans(
    Coordinator& coordinator, std::string_view what, Contribution first,
    const std::vector<LocalPlan>& plan, std::chrono::nanoseconds timeout,
    const std::function<Result<std::vector<std::string>>(std::vector<LocalPlan>)>& settle) {
  GatheredPlans gathered;  // On the coordinator.
  const auto settle_all = [&](char with) -> Result<std::vector<std::string>> {
    VARVE_ASSIGN_OR_RETURN(std::vector<LocalPlan> others, gathered.Take());
    VARVE_ASSIGN_OR_RETURN(std::vector<std::string> replies, settle(std::move(others)));
    for (std::string& reply : replies) {
      reply.insert(reply.begin(), with);
    }
    return replies;
  };
  const auto take_heads = [&](std::vector<std::string> heads) -> Result<std::vector<std::string>> {
    VARVE_RETURN_IF_ERROR(AgreeOnTerms(&heads));
    VARVE_RETURN_IF_ERROR(gathered.TakeHeads(plan[0], heads));
    heads.clear();
    gathered.TakeKnown(coordinator.known_parts());
    std::vector<std::string> asked = gathered.Missing();
    return asked.empty() ? settle_all(kSettled) : std::move(asked);
  };
  const auto take_parts =
      [&](const std::vector<std::string>& parts) -> Result<std::vector<std::string>> {
    VARVE_RETURN_IF_ERROR(gathered.TakeParts(parts, coordinator.known_parts()));
    return settle_all(kSettledWithParts);
  };
  auto reply =
      Exchange(coordinator, what, std::move(first), Now() + timeout, std::cref(take_heads));
  char settled = kSettled;
  if (reply.ok() && !reply->empty() && reply->front() < kSettled && !plan.empty()) {
    settled = kSettledWithParts;
    auto parts =
        Guarded([&]() -> Contribution { return EncodePlanParts(plan[0], reply->front()); });
    reply = Exchange(coordinator, what, std::move(parts), Now() + timeout, std::cref(take_parts));
  }
  return Guarded([&]() -> Result<std::string> {
    if (reply.ok() && (reply->empty() || reply->front() != settled)) {
      return FailedPrecondition("the coordinator's reply is to another call").Annotate(what);
    }
    if (reply.ok()) {
      reply->erase(0, 1);
    }
    return std::move(reply);
  });
}

}  // namespace varve
