// A save that another process writes, and its outcome when a process dies:
//  1. The copy is made in memory that the other process has mapped as well. A trainer that is
//     killed before step 2 leaves nothing: no process knows its save.
//  2. Submit: this process sends the place of the file in that memory, its checksums and the
//     settled plan; the other process confirms. From then on the save does not need this process.
//     Only then does the caller learn that the copy has been made.
//  3. The other process claims, writes and publishes, as the writing thread does otherwise. The
//     ranks then exchange messages through a directory beside the checkpoint, because the trainers'
//     connections end with the trainers. A rank that has no copy to submit reports so there, from
//     this process: its silence would cost the others their deadline. Where the other process may
//     have the copy and has not said so, it may speak for this rank as well: this process then
//     withdraws, which all see at any time, and takes part in no exchange (seed 2427).
//  4. This process waits for the outcome, which is the same on all ranks. If the other process is
//     killed before this rank's file counts, nothing becomes visible; if after, the checkpoint is
//     visible and says so. The peers of step 3 learn of the death from this process; if it is
//     killed too, from their deadline. A process that we have lost may live, and still write from
//     memory that we use again: we revoke the lease of that memory first, and a file written from
//     it since does not count.
//  5. The copy of a save that succeeded is kept: a trainer that is started again on this node loads
//     from it. It is given up when the next copy takes its place, or when memory is short. This
//     process first asks the other one to forget the copy. The blocks are free when the other has
//     answered, or when their lease has been revoked because it did not answer. A reader that reads
//     them meanwhile sees the revoked lease.
// A deferred save stops after step 2: the other process makes step 3 when this one has exited or
// was killed. Two deferred saves are needed for one to be whole at any time: while the ranks submit
// the newer one, some have submitted it and some not. If they are killed then, only the older one
// is whole. So before the ranks plan the next one, they report to each other whether they have
// submitted the last. If all have, they give up the older ones; if not, the last.

#include "async/submitter.h"

#include <utility>

#include "async/file_channel.h"
#include "base/guarded.h"
#include "catalogue/open.h"
#include "catalogue/scan.h"
#include "publish/claim.h"

namespace varve {
namespace {

/// More saves than can be on their way at once.
constexpr std::size_t kMostRecent = 64;

/// Returns the report of a save that is visible though its writer was killed before it reported.
/// The writer may have been killed before it synced the new name: this process does so then (seed
/// 70190). Nothing where the save is not visible, or cannot be made durable, or where that cannot
/// be found out.
std::optional<AsyncSaveReport> VisibleAfterAll(const SaveSession& session, Storage& storage,
                                               const std::string& path) {
  AskAnew(storage, path);
  const auto record = ReadCommitRecord(storage, path);
  const SaveId& id = session.settled().identity.save_id;
  if (!record.ok() || record->save_id != id) {
    return std::nullopt;
  }
  const auto place = FollowLinks(storage, path);
  if (!place.ok() || !storage.SyncDirectory(ParentPath(*place)).ok()) {
    return std::nullopt;
  }
  AsyncSaveReport report;
  report.save_id = id;
  report.bytes_written = session.work().size;
  return report;
}

}  // namespace

Result<std::unique_ptr<Submitter>> Submitter::Make(std::shared_ptr<SaveExecutor> executor,
                                                   StagingPool& pool, Storage& storage) {
  VARVE_RETURN_IF_ERROR(executor->Attach(pool.fd(), pool.block_count()));
  auto submitter = std::unique_ptr<Submitter>(new Submitter(std::move(executor), pool, storage));
  pool.SetOnShortage([made = submitter.get()] { made->GiveUpOne(); });
  return submitter;
}

Status Submitter::Submit(std::uint64_t ticket, const std::string& path, const SaveSession& session,
                         StagedFile* staged, const StagedSaveOptions& options,
                         const DeferredGroup* group, SubmissionState* submitted) {
  Submission save;
  VARVE_ASSIGN_OR_RETURN(save.path, AbsolutePath(path));
  save.settled = session.settled();
  if (staged != nullptr) {
    save.image = staged->Describe();
  } else {
    save.image.checksum_block_bytes = session.work().block_bytes;
  }
  save.options = options;
  save.phases = session.phases();
  VARVE_ASSIGN_OR_RETURN(save.replaces, MayReplace(save));
  if (SharedAccess* const access = storage_.extras().shared_access) {
    VARVE_ASSIGN_OR_RETURN(save.access, access->Describe(save.path));
  }
  if (group != nullptr) {
    save.deferred = *group;
  }
  bool sent = false;
  Status status = executor_->Submit(ticket, save, &sent);
  *submitted = status.ok() ? SubmissionState::kYes
               : sent      ? SubmissionState::kPerhaps
                           : SubmissionState::kNo;
  return status;
}

/// Returns the OccupantOf what was at a name before this process saved to it, and of all that it
/// has lately saved there.
std::vector<std::string> Submitter::RecentlySaved(const std::string& path) {
  std::vector<std::string> known;
  const std::scoped_lock lock(mutex_);
  for (const auto& [name, occupant] : recent_) {
    if (name == path) {
      known.push_back(occupant);
    }
  }
  return known;
}

/// Returns what the save may replace: what is there now, and what this process has saved to the
/// name and may still be on its way there.
Result<std::vector<std::string>> Submitter::MayReplace(const Submission& save) {
  const FileIdentity& identity = save.settled.identity;
  if (identity.rank != 0 || save.options.save.overwrite == Overwrite::kNever) {
    return std::vector<std::string>();
  }
  std::vector<std::string> known = RecentlySaved(save.path);
  if (known.empty()) {  // Else it is what this process has saved there: training waits for this.
    VARVE_ASSIGN_OR_RETURN(const std::string there, OccupantOf(storage_, save.path));
    known.push_back(there);
    const std::scoped_lock lock(mutex_);
    recent_.emplace_back(save.path, there);
  }
  const std::scoped_lock lock(mutex_);
  recent_.emplace_back(save.path, OccupantOf(identity.save_id));
  while (recent_.size() > kMostRecent) {
    recent_.pop_front();
  }
  return known;
}

Result<AsyncSaveReport> Submitter::Await(std::uint64_t ticket, const std::stop_token& stop,
                                         bool* lost) {
  const std::stop_callback cancel(stop, [&] { executor_->Cancel(ticket); });
  return executor_->Wait(ticket, lost);
}

Result<AsyncSaveReport> Submitter::Write(std::uint64_t ticket, SubmissionState submitted,
                                         SaveSession& session, std::unique_ptr<StagedFile>* staged,
                                         const std::string& name, const StagedSaveOptions& options,
                                         const Status& ready) {
  // A name that cannot be made absolute was not submitted either.
  const auto absolute = AbsolutePath(name);
  const std::string path = absolute.ok() ? *absolute : name;
  const MeetingPlace ranks{storage_, session.settled().identity, path};
  if (submitted == SubmissionState::kPerhaps) {
    if (const auto report = VisibleAfterAll(session, storage_, path)) {
      return *report;
    }
    // Two processes must not speak for one rank in the ranks' exchanges.
    Withdraw(ranks, ready);
    return CopyOf(ready);
  }
  if (submitted == SubmissionState::kNo) {
    const auto channel = MakeFileChannel(ranks);
    return WriteWithRetries(session, staged->get(), *channel, name, options, ready);
  }
  bool lost = false;
  Result<AsyncSaveReport> result = Await(ticket, options.save.stop, &lost);
  if (lost) {
    if (const auto report = VisibleAfterAll(session, storage_, path)) {
      return *report;
    }
    Withdraw(ranks, result.status());
    return result;
  }
  if (result.ok()) {
    GiveUp(0, ticket);
    Keep(ticket, std::move(*staged));
  } else {
    executor_->Forget(ticket);
  }
  return result;
}

AsyncSaveReport Submitter::KeepDeferred(std::uint64_t ticket, const SaveSession& session,
                                        std::unique_ptr<StagedFile> staged) {
  AsyncSaveReport report;
  report.save_id = session.settled().identity.save_id;
  report.bytes_written = session.work().size;
  Keep(ticket, std::move(staged));
  return report;
}

bool Submitter::Keeps(std::uint64_t ticket) {
  {
    const std::scoped_lock lock(mutex_);
    if (!kept_.contains(ticket)) {
      return false;
    }
  }
  return executor_->Holds(ticket);
}

void Submitter::DeferredIs(std::uint64_t ticket, bool whole) {
  whole ? GiveUp(0, ticket) : GiveUp(ticket, ticket + 1);
}

void Submitter::Keep(std::uint64_t ticket, std::unique_ptr<StagedFile> staged) {
  {
    const std::scoped_lock lock(mutex_);
    kept_[ticket] = staged == nullptr ? StagingPool::Reservation() : staged->TakeMemory();
  }
  pool_.Poke();
}

void Submitter::GiveUp(std::uint64_t first, std::uint64_t end) {
  Kept old;
  {
    const std::scoped_lock lock(mutex_);
    for (auto at = kept_.lower_bound(first); at != kept_.end() && at->first < end;) {
      old.insert(kept_.extract(at++));
    }
  }
  for (const auto& [ticket, memory] : old) {
    executor_->Forget(ticket);
  }
}

void Submitter::GiveUpOne() {
  Kept old;
  {
    const std::scoped_lock lock(mutex_);
    if (kept_.empty()) {
      return;
    }
    old.insert(kept_.extract(kept_.begin()));
  }
  executor_->Forget(old.begin()->first);
  old.clear();
  pool_.Poke();  // One copy may not have been enough.
}

}  // namespace varve
