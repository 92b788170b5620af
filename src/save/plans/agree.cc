#include "save/plans/agree.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include <malloc.h>

#include "base/bytes.h"
#include "base/guarded.h"
#include "base/name_list.h"
#include "base/time_source.h"
#include "catalogue/side_files.h"
#include "plan/fields.h"
#include "plan/spec_table.h"
#include "publish/publisher.h"
#include "publish/save_id.h"
#include "save/data_writer.h"
#include "save/fingerprint.h"
#include "save/plans/kept_index.h"
#include "save/plans/plan_exchange.h"
#include "save/plans/terms.h"
#include "save/session.h"
#include "save/written_format.h"

namespace varve {

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, ComparedItems::Run>& run) {
  archive(run.items, run.group);
}

/// The part of a settled plan that a rank is told.
struct SettledShare {
  std::string_view assignment;  ///< Encoded.
  Bytes placement;
  Hash128 agreement;  ///< Zero where the coordinator keeps none.
  std::vector<ComparedItems::Run> compared;
  bool forgets_all = false;  ///< All agreements are of no use any more.
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, SettledShare>& share) {
  archive(share.assignment, share.placement, share.agreement, share.compared, share.forgets_all);
}

/// The share that exchange A gives a rank to write.
struct SaveShare {
  FileIdentity identity;
  bool joins = false;
  std::string claim;
  Hash128 before;  ///< The agreement that holds, where `settled` is nothing.
  std::optional<SettledShare> settled;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, SaveShare>& share) {
  archive(share.identity, share.joins, share.claim, share.before, share.settled);
}

namespace {

const WrittenFormat& FormatOf(const SettledSave& settled) {
  return *FindWrittenFormat(settled.format);
}

Status CheckReplicasAgree(const SettledPlan& settled, OnDifference on_difference) {
  const std::vector<std::string>& differing = settled.differing_tensors;
  if (differing.empty() || on_difference != OnDifference::kError) {
    return Status::Ok();
  }
  return FailedPrecondition(
      "tensors differ between the ranks that hold them: " + NameSome(differing) +
      "; nothing was written. Give what each rank has for itself a name of its own");
}

/// Returns an agreement with the parts that all ranks keep alike.
std::shared_ptr<Agreement> MakeAgreement(const Hash128& id, Bytes terms, const LocalPlan& plan,
                                         RankAssignment assignment, ComparedItems compared) {
  auto made = std::make_shared<Agreement>();
  made->id = id;
  made->terms = std::move(terms);
  made->tensors = DigestOfPart(SpecTable(plan).Encode());
  made->structure = DigestOfPart(plan.structure);
  made->plan.tensors = plan.tensors;
  made->plan.objects = plan.objects;
  made->assignment = std::move(assignment);
  made->compared = std::move(compared);
  return made;
}

}  // namespace

Bytes PlanAgreement::Terms() const {
  const SaveOptions& options = call_.options;
  Bytes terms;
  ByteWriter out(&terms);
  out.U8(static_cast<std::uint8_t>(options.format));
  out.U8(static_cast<std::uint8_t>(options.on_difference));
  out.U8(static_cast<std::uint8_t>(options.check_replicas));
  out.U8(settled_->one_writer ? 1 : 0);
  out.U8(settled_->side_files.empty() ? 0 : 1);  // Some formats refuse them.
  out.U64(options.shard_size);
  out.U64(options.block_bytes);
  return terms;
}

Status PlanAgreement::MakePlan(Coordinator& coordinator, const Status& ready) {
  const PhaseTimer timer(phases_, "plan");
  const SaveOptions& options = call_.options;
  VARVE_RETURN_IF_ERROR(CopyOf(ready));
  VARVE_RETURN_IF_ERROR(CheckSaveOptions(options, call_.path));
  settled_->format = options.format;
  settled_->shard_size = options.shard_size;
  const WrittenFormat& format = FormatOf(*settled_);
  settled_->one_writer =
      PublisherOf(call_.storage, call_.path)
          ->PlaceOf(call_.path, settled_->identity.save_id, format.HasFixedNames())
          .one_writer;
  if (coordinator.rank() == 0) {
    VARVE_RETURN_IF_ERROR(CheckSideFiles(call_.state.files));
    settled_->side_files = call_.state.files;
  }
  VARVE_RETURN_IF_ERROR(CheckPickles(call_.state, options.format));
  VARVE_ASSIGN_OR_RETURN(LocalPlan plan, MakeLocalPlan(call_.state));
  if (format.check_own != nullptr) {
    VARVE_RETURN_IF_ERROR(format.check_own(plan, coordinator.size()));
  }
  settled_->plans.clear();
  if (coordinator.is_coordinator()) {  // PlanExchange::plan stays in its place when others come.
    settled_->plans.reserve(static_cast<std::size_t>(coordinator.size()));
  }
  settled_->plans.push_back(std::move(plan));
  if (coordinator.size() == 1) {
    return Status::Ok();
  }
  // A format that places chunks itself may give them to other ranks than was settled.
  if (format.place == nullptr) {
    agreements_ = Agreements::Of(coordinator);
    before_ = agreements_->Find(settled_->plan(), Terms());
  }
  LocalPlan& own = settled_->plans[0];
  if (before_.empty()) {
    LeaveOutFingerprints(coordinator.size(), &own);
    return AddFingerprints(call_.state, options.check_replicas, &own);
  }
  for (const auto& before : before_) {
    VARVE_RETURN_IF_ERROR(
        AddFingerprints(call_.state, options.check_replicas, &own, &before->compared));
  }
  return Status::Ok();
}

/// Fills the fingerprints that MakePlan has not taken; `all`: of every shard.
Status PlanAgreement::Complete(int ranks, bool all) {
  LocalPlan* const own = settled_->plans.data();
  if (all) {
    WantAllFingerprints(own);
  } else {
    LeaveOutFingerprints(ranks, own);
  }
  return AddFingerprints(call_.state, call_.options.check_replicas, own);
}

Status PlanAgreement::Exchange(Coordinator& coordinator, std::string_view what, const Status& ready,
                               const std::function<Result<std::string>()>& claim) {
  PlanExchange mine;
  mine.what = what;
  mine.timeout = call_.options.timeout;
  mine.ready = Guarded([&] { return MakePlan(coordinator, ready); });
  if (mine.ready.ok()) {
    mine.ready = Guarded([&] {
      mine.terms = EncodeTerms(
          TermsOf(call_.options, call_.path, coordinator.size(), call_.claims_apart), {});
      mine.plan = settled_->plans.data();
      mine.before = before_;
    });
  }
  mine.complete = [&](bool all) { return Complete(coordinator.size(), all); };
  mine.settle = [&](GatheredPlans::Taken others, bool missed) {
    return Settle(std::move(others), missed, claim);
  };
  mine.settle_as_before = [&](const std::shared_ptr<const Agreement>& before,
                              std::map<std::uint32_t, std::vector<ObjectSize>> sizes) {
    return SettleAsBefore(*before, std::move(sizes), claim);
  };
  const PhaseTimer timer(phases_, "exchange");
  auto reply = ExchangePlans(coordinator, mine);
  VARVE_RETURN_IF_ERROR(reply.status());
  settled_->identity.rank = static_cast<std::uint32_t>(coordinator.rank());
  settled_->identity.world_size = static_cast<std::uint32_t>(coordinator.size());
  reply_ = *std::move(reply);
  return Status::Ok();
}

/// Gives a save of `ranks` its identity, on the coordinator.
Status PlanAgreement::MakeIdentity(std::size_t ranks) {
  FileIdentity& identity = settled_->identity;
  const std::optional<SaveId>& given = call_.options.save_id;
  VARVE_ASSIGN_OR_RETURN(identity.save_id, given ? *given : RandomSaveId());
  identity.created_ns = UnixTimeNs();
  identity.block_bytes = call_.options.block_bytes;
  identity.world_size = static_cast<std::uint32_t>(ranks);
  return Status::Ok();
}

/// Checks what was settled as the format wants it, and returns WrittenFormat::place of each rank;
/// empty where there is none. The format sees the plans of all ranks.
Result<std::vector<Bytes>> PlanAgreement::CheckAndPlace(SettledPlans* all) {
  const WrittenFormat& format = FormatOf(*settled_);
  std::vector<LocalPlan> own = std::exchange(settled_->plans, std::move(all->plans));
  settled_->settled = std::move(all->settled);
  settled_->hidden = std::move(all->hidden);
  std::vector<Bytes> placements;
  const auto ask = [&]() -> Status {
    VARVE_RETURN_IF_ERROR(format.check(*settled_));
    if (format.place != nullptr) {
      VARVE_ASSIGN_OR_RETURN(placements, format.place(settled_));
      settled_->placement = placements[0];  // What follows looks at it.
    }
    settled_->joins = format.joined != nullptr && format.joined->is_needed(*settled_);
    return Status::Ok();
  };
  Status asked = ask();
  all->plans = std::exchange(settled_->plans, std::move(own));
  all->settled = std::move(settled_->settled);
  settled_->hidden.clear();
  VARVE_RETURN_IF_ERROR(std::move(asked));
  return placements;
}

/// Settles the plans of all ranks, on the coordinator within the exchange. Returns none where
/// fingerprints lack.
Result<std::vector<std::string>> PlanAgreement::Settle(GatheredPlans::Taken others, bool missed,
                                                       const ClaimFunction& claim) {
  const WrittenFormat& format = FormatOf(*settled_);
  const OnDifference on_difference = call_.options.on_difference;
  const bool keeps = format.holds_variants && on_difference != OnDifference::kFirst;
  const bool cuts = call_.options.check_replicas == CheckReplicas::kFull;
  VARVE_ASSIGN_OR_RETURN(SettledPlans all,
                         SettlePlans(settled_->plan(), others,
                                     {.differing = keeps ? Differing::kKeep : Differing::kFirst,
                                      .replicas = cuts ? Replicas::kCut : Replicas::kWhole,
                                      .has_pattern = agreements_ != nullptr,
                                      .may_fold = format.takes_folded}));
  if (all.settled.lacks_fingerprints) {
    return std::vector<std::string>();
  }
  VARVE_RETURN_IF_ERROR(CheckReplicasAgree(all.settled, on_difference));
  VARVE_RETURN_IF_ERROR(MakeIdentity(all.plans.size()));
  VARVE_ASSIGN_OR_RETURN(std::vector<Bytes> placements, CheckAndPlace(&all));
  VARVE_ASSIGN_OR_RETURN(settled_->claim, claim());
  const auto assignments = all.Assignments();
  others.plans.SetAssignments(assignments);
  settled_->others = std::make_shared<const RankPlans>(std::move(others.plans));
  VARVE_ASSIGN_OR_RETURN(const RankAssignment own, DecodeAssignment(*assignments[0]));
  settled_->settled.ranks.assign(1, own);
  settled_->settled.differing_objects = all.settled.differing_objects;
  settled_->settled.differing_tensors = all.settled.differing_tensors;
  std::vector<SettledShare> shares(assignments.size());
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    shares[rank].assignment = *assignments[rank];
    shares[rank].placement = placements.empty() ? Bytes() : std::move(placements[rank]);
  }
  if (all.pattern) {
    Keep(std::move(all), missed, &shares);
  } else {
    all = {};
  }
  std::vector<std::string> replies(shares.size());
  for (std::size_t rank = 1; rank < shares.size(); ++rank) {
    SaveShare share = SharedByAll();
    share.settled = std::move(shares[rank]);
    replies[rank] = EncodeFields(share);
  }
  shares.clear();
  ReturnFreedMemory();
  return replies;
}

/// Gives the memory that the plans of many ranks took back to the system: the allocator keeps it in
/// pieces, 0.35 GiB after 4,096 ranks with 1,000 tensors each.
void PlanAgreement::ReturnFreedMemory() const {
#ifdef __GLIBC__
  constexpr std::size_t kMany = std::size_t{4} << 20;  // Encoded. Decoded it is ten times as much.
  if (settled_->others->bytes() > kMany) {
    ::malloc_trim(0);
  }
#endif
}

/// Keeps what was settled for later saves, where there is memory for it, and puts its number and
/// what each rank compares into the shares. On the coordinator.
void PlanAgreement::Keep(SettledPlans all, bool missed, std::vector<SettledShare>* shares) {
  const Agreements::Next next = agreements_->Settled(missed);
  for (SettledShare& share : *shares) {
    share.forgets_all = next == Agreements::Next::kClear;
  }
  (void)Guarded([&]() -> Status {
    std::vector<ComparedItems> compared = all.FinishPattern();
    if (next != Agreements::Next::kKeep || compared.empty()) {
      return Status::Ok();
    }
    VARVE_ASSIGN_OR_RETURN(const SaveId id, RandomSaveId());
    auto agreement = MakeAgreement({id.bytes}, Terms(), settled_->plan(), settled_->assignment(),
                                   std::move(compared[0]));
    agreement->pattern = *std::move(all.pattern);
    agreement->differing_objects = settled_->settled.differing_objects;
    agreement->differing_tensors = settled_->settled.differing_tensors;
    agreement->others = settled_->others;
    agreement->index = std::make_shared<KeptIndex>();
    if (agreements_->Keep(agreement)) {
      settled_->kept_index = agreement->index;
      for (std::size_t rank = 1; rank < shares->size(); ++rank) {
        (*shares)[rank].agreement = agreement->id;
        (*shares)[rank].compared = std::move(compared[rank].runs);
      }
    }
    return Status::Ok();
  });
}

/// Takes what was settled in an earlier save, on the coordinator within the exchange.
Result<std::vector<std::string>> PlanAgreement::SettleAsBefore(
    const Agreement& before, std::map<std::uint32_t, std::vector<ObjectSize>> sizes,
    const ClaimFunction& claim) {
  SettledPlan& settled = settled_->settled;
  settled.ranks.assign(1, before.assignment);
  settled.differing_objects = before.differing_objects;
  settled.differing_tensors = before.differing_tensors;
  settled_->others = before.others;
  settled_->kept_index = before.index;
  settled_->sizes = std::move(sizes);
  const std::size_t ranks = before.others->world_size();
  VARVE_RETURN_IF_ERROR(MakeIdentity(ranks));
  VARVE_ASSIGN_OR_RETURN(settled_->claim, claim());
  agreements_->Use(before);
  std::vector<std::string> replies(ranks);
  SaveShare share = SharedByAll();
  share.before = before.id;
  std::fill(replies.begin() + 1, replies.end(), EncodeFields(share));
  return replies;
}

/// Returns what all ranks are told of the save. It names no rank: equal replies travel as one.
SaveShare PlanAgreement::SharedByAll() const {
  return {settled_->identity, settled_->joins, settled_->claim, {}, std::nullopt};
}

Status PlanAgreement::TakeShare() {
  if (settled_->identity.rank == 0) {
    return Status::Ok();  // The coordinator's own share goes the short way.
  }
  VARVE_ASSIGN_OR_RETURN(SaveShare share, DecodeFields<SaveShare>(reply_));
  share.identity.rank = settled_->identity.rank;
  settled_->identity = share.identity;
  settled_->joins = share.joins;
  settled_->claim = std::move(share.claim);
  settled_->settled.ranks.clear();
  if (!share.settled) {
    return TakeBefore(share.before);
  }
  settled_->placement = std::move(share.settled->placement);
  VARVE_ASSIGN_OR_RETURN(RankAssignment own, DecodeAssignment(share.settled->assignment));
  settled_->settled.ranks.push_back(std::move(own));
  if (agreements_ != nullptr) {
    KeepOwn(*share.settled);
  }
  return Status::Ok();
}

/// Takes this rank's share from an agreement that it has named.
Status PlanAgreement::TakeBefore(const Hash128& agreement) {
  const auto found = std::find_if(before_.begin(), before_.end(),
                                  [&](const auto& one) { return one->id == agreement; });
  if (found == before_.end()) {
    return Internal("the coordinator takes this rank's plan for that of another save");
  }
  settled_->settled.ranks.push_back((*found)->assignment);
  agreements_->Use(**found);
  return Status::Ok();
}

/// Keeps this rank's part of what was settled. Without memory for it the rank sends its plan again.
void PlanAgreement::KeepOwn(const SettledShare& share) {
  if (share.forgets_all) {
    agreements_->Clear();
  }
  if (share.agreement == Hash128()) {
    return;
  }
  (void)Guarded([&] {
    agreements_->Keep(MakeAgreement(share.agreement, Terms(), settled_->plan(),
                                    settled_->assignment(), {share.compared}));
  });
}

}  // namespace varve
