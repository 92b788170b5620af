// A coordinated save: two exchanges, up to four, whatever the number of ranks.
//   A. Every rank contributes its options and its local plan, which has a fingerprint of each
//      shard that other ranks may hold, or says that the plan is as in an earlier save. One more
//      exchange brings what plans do not have in common, and rank 0 has from no earlier save; one
//      more the other fingerprints, where ranks hold the same after all
//      (plans/plan_exchange.cc). The coordinator checks that the options agree (plans/terms.h),
//      settles who writes what, finds replicas that differ, and checks that the index can be
//      written; where all plans are as before, it has done so then. Then it claims the name and
//      makes the staging directory (commit.cc, steps 0-4); each rank learns its part.
//   B. Every rank writes and syncs its data file, then contributes its checksums. The coordinator
//      merges them into the manifest and publishes (commit.cc, steps 6-11); all learn the outcome.
// Ranks that join files of what all have written (JoinedFiles) meet once more before the joining.
// A rank that fails in between contributes its error: all ranks return it, and the staging
// directory goes. A rank that dies is named by the exchange it does not answer.
//
// An asynchronous save settles with the tensors at hand and claims the name later, in the
// background, in an exchange of its own between A and B. A rank whose copy failed says so there,
// before anything has been written. A save that is repeated begins at that exchange.
//
// A rank takes part in every exchange whatever happens to it between them, also where it runs out
// of memory: each step runs in Guarded, and nothing is allocated around the exchanges themselves.

#include "save/coordinated.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/guarded.h"
#include "base/phase_fields.h"
#include "base/time_source.h"
#include "base/trace.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/scan.h"
#include "catalogue/side_files.h"
#include "publish/claim.h"
#include "publish/publisher.h"
#include "publish/save_id.h"
#include "publish/upload_claim.h"
#include "save/later_job.h"
#include "save/plans/agree.h"
#include "save/report_outcome.h"
#include "save/written_format.h"

namespace varve {

/// What a rank brings to exchange B.
struct RankReceipt {
  std::string receipt;
  std::vector<Phase> phases;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, RankReceipt>& mine) {
  archive(mine.receipt, mine.phases);
}

namespace {

/// The pause between two attempts to claim a name is a small part of the wait so far.
constexpr std::chrono::nanoseconds kShortestPause = std::chrono::milliseconds(200);
constexpr std::chrono::nanoseconds kLongestPause = std::chrono::seconds(5);
constexpr int kPauseShare = 16;

class CoordinatedSave final : public SaveSession {
 public:
  CoordinatedSave(const State& state, const std::string& path, const SaveOptions& options,
                  Claim claim, Storage& storage)
      : state_(&state), path_(path), options_(options), claim_(claim), storage_(storage) {}

  /// Resumes a save that was planned by another process.
  CoordinatedSave(SettledSave settled, const std::string& path, const SaveOptions& options,
                  Storage& storage)
      : path_(path), options_(options), claim_(Claim::kApart), storage_(storage), start_(Now()) {
    settled_ = std::move(settled);
  }

  Status Resume() { return Prepare(); }

  Status Plan(Coordinator& coordinator, const Status& ready) override {
    start_ = Now();
    PlanAgreement agreement({*state_, path_, options_, storage_, claim_ == Claim::kApart},
                            &settled_, &phases_);
    const auto claim = [&]() -> Result<std::string> {
      if (claim_ == Claim::kWithPlan) {
        VARVE_RETURN_IF_ERROR(ClaimName());
      }
      return commit_ == nullptr ? std::string() : commit_->claim();
    };
    Status agreed = agreement.Exchange(coordinator, what_, ready, claim);
    if (!agreed.ok()) {
      LeaveClaim();
      return agreed;
    }
    // A failure is this rank's alone: Write reports it to the others.
    prepared_ = Guarded([&] {
      const PhaseTimer layout(&phases_, "plan");
      VARVE_RETURN_IF_ERROR(agreement.TakeShare());
      return Prepare();
    });
    return Status::Ok();
  }

  Result<SaveReport> Write(Coordinator& coordinator, StagedFile* staged,
                           const Status& ready) override {
    Status begun = CopyOf(prepared_.ok() ? ready : prepared_);
    if (claim_ == Claim::kApart) {
      begun = ExchangeClaim(coordinator, std::move(begun));
      if (!begun.ok()) {
        LeaveClaim();
        return begun;
      }
    }
    SaveReport report;
    auto written = Guarded([&]() -> Result<WrittenShare> {
      VARVE_RETURN_IF_ERROR(begun);
      report.differing_objects = settled_.settled.differing_objects;
      report.differing_tensors = settled_.settled.differing_tensors;
      return WriteShare(staged);
    });
    Status outcome = JoinFiles(coordinator, &written);
    if (outcome.ok()) {
      outcome = ExchangeReceipts(coordinator, &written);
    }
    if (!outcome.ok()) {
      if (MayStillWrite(outcome)) {
        LeaveClaim();
      }
      commit_.reset();  // Abandons, and the next attempt claims the name anew.
      return outcome;
    }
    report.save_id = settled_.identity.save_id;
    report.bytes_written = written->bytes;
    report.direct = written->direct;
    report.device_bytes = written->device_bytes;
    report.pageable_bytes = written->pageable_bytes;
    if (commit_ != nullptr) {
      report.conflicts = commit_->conflicts();
      report.weak_publish = commit_->weak_publish();
    }
    report.phases = std::move(phases_);
    report.seconds = std::chrono::duration<double>(Now() - start_).count();
    return report;
  }

 private:
  [[nodiscard]] const WrittenFormat& format() const { return *FindWrittenFormat(settled_.format); }
  [[nodiscard]] SavePlace Place(const std::string& path) const {
    return PublisherOf(storage_, path)
        ->PlaceOf(path, settled_.identity.save_id, format().HasFixedNames());
  }
  [[nodiscard]] Deadline NextDeadline() const { return Now() + options_.timeout; }

  /// Returns the files that the checkpoint will have beside those whose names Varve alone gives.
  [[nodiscard]] std::vector<BroughtFile> Brought() const {
    std::vector<BroughtFile> brought;
    brought.reserve(settled_.side_files.size());
    for (const SideFile& file : settled_.side_files) {
      brought.push_back({file.name, &file.content});
    }
    if (format().names != nullptr) {
      for (std::string& name : format().names(settled_)) {
        brought.push_back({std::move(name)});
      }
    }
    return brought;
  }

  /// Begins the commit; waits for a save that is under way if `waits`.
  Result<std::unique_ptr<Commit>> BeginCommit(const std::function<bool()>& waits) {
    const CommitTerms terms{.id = settled_.identity.save_id,
                            .overwrite = options_.overwrite,
                            .stop = options_.stop,
                            .brought = Brought(),
                            .index = {.name = std::string(format().index_name),
                                      .format = options_.format,
                                      .fixed = format().HasFixedNames()}};
    const TimePoint start = Now();
    const Deadline until = start + options_.timeout / 2;
    bool was_free = false;  // The lock, after the last attempt: then it failed for another reason.
    while (true) {
      auto commit = Commit::Begin(storage_, path_, terms);
      if (commit.status().code() != StatusCode::kFailedPrecondition || was_free || !waits() ||
          Now() >= until || options_.stop.stop_requested()) {
        return commit;
      }
      const auto place = FollowLinks(storage_, path_);
      was_free = !place.ok() ||
                 LockName(storage_, *place).status().code() != StatusCode::kFailedPrecondition;
      const auto pause = std::clamp<std::chrono::nanoseconds>((Now() - start) / kPauseShare,
                                                              kShortestPause, kLongestPause);
      SleepFor(was_free ? std::chrono::nanoseconds(0) : pause);
    }
  }

  /// Claims the name. A save whose trainer has exited may meet the saves of the next job there: it
  /// waits for them, and leaves them. It replaces what its trainer knew, whatever the clock says,
  /// which may have gone back; and what an earlier job's agents have written since, by the clock.
  Status ClaimName() {
    const auto may_meet_others = [&] { return others_come_ && others_come_(); };
    VARVE_ASSIGN_OR_RETURN(commit_, BeginCommit(may_meet_others));
    if (may_meet_others()) {
      const auto newer = HoldsWhatIsNewer();
      if (!newer.ok() || *newer) {
        commit_.reset();
        VARVE_RETURN_IF_ERROR(newer.status());
        return AlreadyExists(path_ +
                             " holds a checkpoint that came after this save was submitted; the "
                             "trainer has ended since, and did not know it");
      }
    }
    Status later = CheckIsNotOfALaterJob(storage_, path_, settled_.side_files, options_.overwrite);
    if (!later.ok()) {
      commit_.reset();
    }
    return later;
  }

  [[nodiscard]] Result<bool> HoldsWhatIsNewer() const {
    VARVE_ASSIGN_OR_RETURN(const std::string there, OccupantOf(storage_, path_));
    if (there.empty() || std::find(known_.begin(), known_.end(), there) != known_.end()) {
      return false;
    }
    const auto began = BeginningOfSave(storage_, path_);
    return !began || *began > settled_.identity.created_ns;
  }

  Status ExchangeClaim(Coordinator& coordinator, Status ready) {
    const auto claim =
        [&](const std::vector<std::string>& ranks) -> Result<std::vector<std::string>> {
      std::vector<std::string> replies(ranks.size());
      VARVE_RETURN_IF_ERROR(ClaimName());
      return replies;
    };
    auto mine = ready.ok() ? Contribution(std::string()) : Contribution(std::move(ready));
    const PhaseTimer timer(&phases_, "exchange");
    return Exchange(coordinator, what_, std::move(mine), NextDeadline(), std::cref(claim)).status();
  }

  /// Lays this rank's file out, without data where it was planned elsewhere.
  Status Prepare() {
    VARVE_ASSIGN_OR_RETURN(RankFile file, format().lay_out(state_, settled_));
    file_name_ = std::move(file.name);
    work_ = std::move(file.work);
    settled_.layout = work_.layout;
    return Status::Ok();
  }

  Result<WrittenShare> WriteShare(StagedFile* staged) {
    VARVE_ASSIGN_OR_RETURN(const std::string path, FollowLinks(storage_, path_));
    const SavePlace place = Place(path);
    if (!settled_.claim.empty()) {
      VARVE_RETURN_IF_ERROR(CheckUploadClaim(storage_, place.directory, settled_.claim));
    }
    const bool of_another = place.is_made && settled_.identity.rank != 0;
    auto written =
        WriteFileWork(storage_, JoinPath(place.directory, file_name_), work_, staged, options_,
                      &phases_, of_another ? Directory::kOfAnotherRank : Directory::kOwn);
    return written.ok() || !place.is_made ? std::move(written) : WithoutNotFound(written.status());
  }

  /// Makes this rank's files of what all ranks have written, where the format needs it: an exchange
  /// when all of that is there, and then the files. Puts their receipt, or the error, into
  /// `written`. Errors: those of the exchange.
  Status JoinFiles(Coordinator& coordinator, Result<WrittenShare>* written) {
    if (!settled_.joins) {
      return Status::Ok();
    }
    const JoinedFiles* const joined = format().joined;
    const std::string staging = Place(path_).directory;
    auto mine = Guarded([&]() -> Contribution {
      VARVE_RETURN_IF_ERROR(CopyOf(written->status()));
      return (*written)->receipt;
    });
    const auto gather =
        [&](const std::vector<std::string>& receipts) -> Result<std::vector<std::string>> {
      std::vector<std::string> replies(receipts.size());
      VARVE_RETURN_IF_ERROR(joined->gather(settled_, receipts, staging, storage_));
      return replies;
    };
    std::optional<PhaseTimer> timer(std::in_place, &phases_, "exchange");
    VARVE_RETURN_IF_ERROR(
        Exchange(coordinator, what_, std::move(mine), NextDeadline(), std::cref(gather)).status());
    timer.emplace(&phases_, "join");
    const Status done = Guarded([&] {
      VARVE_ASSIGN_OR_RETURN(WrittenShare made,
                             joined->join(settled_, staging, storage_, options_));
      (*written)->receipt = std::move(made.receipt);
      (*written)->bytes += made.bytes;
      return Status::Ok();
    });
    if (!done.ok()) {
      *written = done;
    }
    return Status::Ok();
  }

  /// Ends a save of which ranks may know that it has begun.
  void LeaveClaim() {
    if (commit_ != nullptr) {
      commit_->Leave();
      commit_.reset();
    }
  }

  /// Takes the receipt out of `written`.
  Status ExchangeReceipts(Coordinator& coordinator, Result<WrittenShare>* written) {
    auto mine = Guarded([&]() -> Contribution {
      VARVE_RETURN_IF_ERROR(CopyOf(written->status()));
      return EncodeFields(RankReceipt{std::move((*written)->receipt), phases_});
    });
    const auto publish = [&](std::vector<std::string> all) -> Result<std::vector<std::string>> {
      std::vector<std::string> replies(all.size());  // Nothing may fail once it is published.
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        VARVE_ASSIGN_OR_RETURN(RankReceipt one, DecodeFields<RankReceipt>(all[rank]));
        all[rank] = std::move(one.receipt);
        if (all.size() > 1) {
          NoteSlowest(static_cast<std::uint32_t>(rank), one.phases, &phases_);
        }
      }
      VARVE_RETURN_IF_ERROR(Publish(all));
      return replies;
    };
    const PhaseTimer timer(&phases_, "commit");
    auto outcome =
        Exchange(coordinator, what_, std::move(mine), NextDeadline(), std::cref(publish));
    // Once published the save has succeeded, even if a rank died before it received the outcome.
    return published_ ? Status::Ok() : CopyOf(outcome.status());
  }

  /// Publishes, on the coordinator within exchange B.
  Status Publish(const std::vector<std::string>& receipts) {
    VARVE_ASSIGN_OR_RETURN(const CheckpointIndex made,
                           format().make_index(settled_, receipts, commit_->below()));
    VARVE_RETURN_IF_ERROR(WritePatches(storage_, commit_->staging(), made.patches));
    for (const std::string& name : made.used_up) {
      VARVE_RETURN_IF_ERROR(storage_.Remove(JoinPath(commit_->staging(), name)));
    }
    commit_->AddSideFiles(settled_.side_files);
    VARVE_RETURN_IF_ERROR(commit_->Publish(made.files, made.index));
    published_ = true;
    if (others_come_) {
      (void)Guarded([&] {
        VARVE_ASSIGN_OR_RETURN(published_as_, OccupantOf(storage_, path_));  // Still locked.
        return Status::Ok();
      });
    }
    return Status::Ok();
  }

  const State* const state_ = nullptr;  // Null where it was planned elsewhere.
  const std::string& path_;
  const std::string what_ = "save " + path_;
  const SaveOptions& options_;
  const Claim claim_;
  Storage& storage_;
  TimePoint start_;
  // On the coordinator:
  std::unique_ptr<Commit> commit_;
  bool published_ = false;
};

}  // namespace

std::unique_ptr<SaveSession> MakeCoordinatedSave(const State& state, const std::string& path,
                                                 const SaveOptions& options, Claim claim,
                                                 Storage& storage) {
  return std::make_unique<CoordinatedSave>(state, path, options, claim, storage);
}

Result<std::unique_ptr<SaveSession>> ResumeCoordinatedSave(SettledSave settled,
                                                           const std::string& path,
                                                           const SaveOptions& options,
                                                           Storage& storage) {
  auto save = std::make_unique<CoordinatedSave>(std::move(settled), path, options, storage);
  VARVE_RETURN_IF_ERROR(save->Resume());
  return std::unique_ptr<SaveSession>(std::move(save));
}

}  // namespace varve
