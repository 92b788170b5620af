// The steps of an asynchronous save, and the thread that makes each:
//  1. Plan, on the caller's thread: the ranks settle who writes what (exchange A of
//     save/coordinated.cc). The plan comes first because this rank copies only what it will write.
//     Callers make their calls in the same order on all ranks, so this exchange needs no order of
//     its own.
//  2. Stage, on the caller's thread, or on the stager's copying thread for an overlapped save: the
//     file's data are copied into staging memory. Saves reserve memory in the order of the calls: a
//     save that waited for memory of a later one would wait forever, because the later one is
//     written after it. After the copy the tensors are not read.
//  3. Write, on the stager's writing thread, in the order of the calls and so in the same order on
//     all ranks: claim the name, write the copy, publish (exchanges on the background coordinator).
//     A rank whose copy failed, or that was cancelled, reports it in the first of these exchanges;
//     its silence would cost its peers their deadline. No rank has written anything by then.
//  4. If step 3 failed for want of space or storage and all ranks agree, they repeat it from the
//     claim on (attempts.cc).
// In waves, steps 2 and 3 run at the same time. The save ends when it is published or has failed.
// Its staging memory is free before the outcome is reported.
//
// Where another process writes the save, step 2 ends with the submission of the copy, and step 3
// waits for that process (submitter.cc). A deferred save ends with step 2.

#include "async/job.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/events.h"
#include "base/guarded.h"
#include "base/time_source.h"
#include "base/trace.h"
#include "save/report_outcome.h"

namespace varve {
namespace {

bool WantsTornCheck(const StagedSaveOptions& options) {
  return options.check_torn.value_or(options.overlapped || std::getenv("VARVE_DEBUG") != nullptr);
}

}  // namespace

AsyncJob::AsyncJob(State state, std::string path, AsyncSaveOptions options, WriteWhen when,
                   const JobPlace& place, Status ready)
    : state_(std::move(state)),
      path_(std::move(path)),
      storage_(place.storage),
      rank_(place.rank),
      submitter_(place.submitter),
      may_use_devices_(place.may_use_devices),
      pins_(place.pins),
      when_(when),
      callers_ready_(std::move(ready)),
      options_(std::move(options)) {
  users_stop_.emplace(options_.save.stop, [this] {
    Cancel(Guarded([&] { return Status(StatusCode::kCancelled, what_ + ": cancelled"); }));
  });
  options_.save.stop = stop_.get_token();
  session_ = MakeSaveSession(state_, path_, options_.save, Claim::kApart, storage_);
  if (options_.deadline) {
    watched_ = Guarded([&] { watchdog_ = Thread([this] { Watch(destroyed_.get_token()); }); });
  }
}

Status AsyncJob::Plan(Coordinator& coordinator, const Status& ready) {
  const Status mine = Guarded([&] {
    VARVE_RETURN_IF_ERROR(CopyOf(ready));
    VARVE_RETURN_IF_ERROR(CopyOf(watched_).Annotate("watch the deadline"));
    VARVE_RETURN_IF_ERROR(CopyOf(callers_ready_));
    return AwaitDeviceWork(state_, may_use_devices_);
  });
  VARVE_RETURN_IF_ERROR(session_->Plan(coordinator, mine));
  {
    const std::scoped_lock lock(mutex_);
    (void)Take(JobEvent::kPlanned);
  }
  const Status noted = Guarded([&] {
    const SettledPlan& settled = session_->settled().settled;
    auto tensors = settled.differing_tensors;
    auto objects = settled.differing_objects;
    const std::scoped_lock lock(mutex_);
    differing_tensors_ = std::move(tensors);
    differing_objects_ = std::move(objects);
  });
  if (!noted.ok()) {
    AllowWriting(JobEvent::kMayWrite,
                 noted);  // The other ranks count on this one by now: it fails with them.
  }
  if (WantsTornCheck(options_)) {
    const Slice slice("take samples");
    samples_.emplace(Guarded([&] { return TornSamples::Take(session_->work().segments); }));
  }
  return Status::Ok();
}

void AsyncJob::Stage(StagingPool& pool, StagingPool::Ticket ticket, int threads) {
  const Status status = CopyAndSubmit(pool, ticket, threads);
  if (samples_ && samples_->ok()) {
    (*samples_)->Wait();  // The tensors may be freed once the copy is said to have ended.
  }
  if (staged_file_ != nullptr) {
    // In waves the writing thread may wait for more blocks.
    status.ok() ? staged_file_->SumInBackground() : staged_file_->Abandon(CopyOf(status));
  }
  AllowWriting(JobEvent::kCopyEnded, status);
}

Status AsyncJob::CopyAndSubmit(StagingPool& pool, StagingPool::Ticket ticket, int threads) {
  const auto number = static_cast<std::uint64_t>(ticket);
  // Copy uses the ticket up: the tickets behind it would wait for it forever.
  const auto copy = [&] { return Copy(pool, ticket, threads).Annotate(what_); };
  Status status = Guarded(copy);
  if (submitter_ == nullptr || HasCopyInWaves()) {
    return status;
  }
  const auto submit = [&] { return Submit(number, std::move(status)); };
  status = Guarded(submit);
  if (!status.ok() && with_other_ == SubmissionState::kNo) {
    const auto pass = [&] {
      submitter_->Pass(number);
      return Status::Ok();
    };
    (void)Guarded(pass);
  }
  return status;
}

Status AsyncJob::Copy(StagingPool& pool, StagingPool::Ticket ticket, int threads) {
  const FileWork& work = session_->work();
  const std::size_t blocks =
      work.segments.empty() ? 0 : StagedFile::BlocksFor(work.segments, work.block_bytes);
  // Checked before any kept copy is given up for this save.
  const bool too_large = deferred() && blocks > pool.block_count();
  VARVE_ASSIGN_OR_RETURN(auto memory,
                         pool.Reserve(ticket, too_large ? 0 : blocks, options_.save.stop));
  if (too_large) {
    return InvalidArgument("a deferred save must fit into the staging memory as a whole");
  }
  if (work.segments.empty()) {
    return Status::Ok();
  }
  if (samples_) {
    VARVE_RETURN_IF_ERROR(samples_->status());
  }
  if (device_) {
    pool.TakeFromNodeOf(*device_);
  }
  staged_file_ = std::make_unique<StagedFile>(work.segments, work.block_bytes, std::move(memory));
  // Another process gets the sums with the copy.
  staged_file_->SetUpDevices(work.name_of, pins_ ? &BufferPool::Shared() : nullptr,
                             submitter_ == nullptr);
  if (staged_file_->in_waves()) {
    if (submitter_ != nullptr) {
      submitter_->Pass(static_cast<std::uint64_t>(ticket));  // A copy in waves is never whole, and
                                                             // could not outlive us.
    }
    AllowWriting(JobEvent::kMayWrite, Status::Ok());
  }
  std::vector<Phase> phases;
  Status filled;
  {
    const PhaseTimer timer(&phases, "stage", work.size - work.data_begin);
    filled = staged_file_->Fill(threads, options_.save.stop, [&] {
      return samples_ ? (*samples_)->Compare(work.name_of) : Status::Ok();
    });
  }
  StagingMemory registered = pool.memory_report();
  const std::scoped_lock lock(mutex_);
  staging_ = std::move(phases);
  NoteDeviceBytes();
  staging_memory_ = std::move(registered);
  return filled;
}

/// Records how many bytes came from devices. The lock is held.
void AsyncJob::NoteDeviceBytes() {
  device_bytes_ = staged_file_->copier().fetch().device_bytes();
  pageable_bytes_ = staged_file_->copier().fetch().pageable_bytes();
}

/// Adds the phase of the copy to the session's, which the ranks compare. Not while it is made.
void AsyncJob::AddStaging() {
  const std::scoped_lock lock(mutex_);
  session_->AddPhases(std::exchange(staging_, {}));
}

/// Adds the time from the copy until now, when the turn to write it has come.
void AsyncJob::AddWait() {
  const std::scoped_lock lock(mutex_);
  if (submitter_ == nullptr && is_.copy == CopyState::kEnded) {
    const std::chrono::duration<double> since = Now() - start_;
    (void)Guarded([&] {
      session_->AddPhases({{.name = "wait", .seconds = since.count() - staging_seconds_}});
    });
  }
}

/// Submits the copy to the process that writes it.
Status AsyncJob::Submit(std::uint64_t ticket, Status staged) {
  if (staged.ok()) {
    staged = session_->prepared();
  }
  AddStaging();
  if (staged.ok()) {
    ticket_ = ticket;
    staged = submitter_->Submit(ticket, path_, *session_, staged_file_.get(), options_,
                                group_.get(), &with_other_);
  }
  if (!staged.ok()) {
    return staged;
  }
  if (deferred()) {
    submitted_ = submitter_->KeepDeferred(ticket, *session_, std::move(staged_file_));
  }
  return staged;
}

/// Notes why nothing will be written, or that something may be.
void AsyncJob::AllowWriting(JobEvent event, const Status& ready) {
  JobActions actions;
  {
    const std::scoped_lock lock(mutex_);
    if (is_.write == WriteState::kWaits) {
      ready_ = CopyOf(ready);
    }
    actions = Take(event);
  }
  if (actions.tell) {
    Tell(ready);
  }
}

JobActions AsyncJob::Take(JobEvent event) {
  const auto before = Name(is_);
  const JobActions actions = Step(&is_, event);
  if (actions.tell) {
    staging_seconds_ = std::chrono::duration<double>(Now() - start_).count();
  }
  changed_.notify_all();
  if (Name(is_) != before) {
    ReportEvent([&] {
      return Event{.level = EventLevel::kDebug,
                   .rank = rank_,
                   .message = what_ + ": " + std::string(before) + " -> " + std::string(Name(is_))};
    });
  }
  return actions;
}

/// Tells the caller that the tensors may change.
void AsyncJob::Tell(const Status& staged) {
  staged_promise_.set_value(CopyOf(staged));
  if (options_.on_staged) {
    (void)Guarded([&] { options_.on_staged(staged); });
  }
}

Status AsyncJob::AwaitReady() {
  std::unique_lock lock(mutex_);
  (void)Wait(changed_, lock, {}, [&] { return is_.write != WriteState::kWaits; });
  // Where the save was given up before there was a copy, there is none yet.
  (void)Wait(changed_, lock, {},
             [&] { return is_.write != WriteState::kEnded || is_.copy == CopyState::kEnded; });
  (void)Take(JobEvent::kWriteBegins);
  return CopyOf(why_cancelled_ ? *why_cancelled_ : ready_);
}

Result<AsyncSaveReport> AsyncJob::WriteIn(Coordinator& background, const Status& ready) {
  if (submitter_ == nullptr) {
    return WriteWithRetries(*session_, staged_file_.get(), background, path_, options_, ready);
  }
  if (!deferred()) {
    return Guarded([&] {
      return submitter_->Write(ticket_, with_other_, *session_, &staged_file_, path_, options_,
                               ready);
    });
  }
  // A submitted save is kept, even if it has been cancelled since.
  return Guarded([&] { return submitted_ ? *submitted_ : Result<AsyncSaveReport>(ready); });
}

void AsyncJob::AddFacts(Result<AsyncSaveReport>* result) {
  const std::scoped_lock lock(mutex_);
  if (result->ok()) {
    // Of a copy in waves, which is made while it is written.
    auto& phases = (*result)->phases;
    const auto write = std::find_if(phases.begin(), phases.end(),
                                    [](const Phase& phase) { return phase.name == "write"; });
    (void)Guarded([&] { phases.insert(write, staging_.begin(), staging_.end()); });
    (*result)->staging_seconds = staging_seconds_;
    (*result)->in_waves = HasCopyInWaves();
    // Without memory for the names the report lacks them; the checkpoint is whole.
    (void)Guarded([&] {
      (*result)->differing_tensors = differing_tensors_;
      (*result)->differing_objects = differing_objects_;
    });
    if (staged_file_ != nullptr) {
      NoteDeviceBytes();
    }
    (*result)->device_bytes = device_bytes_;
    (*result)->pageable_bytes = pageable_bytes_;
    (*result)->staging_memory = std::move(staging_memory_);
    (void)Guarded([&] { (*result)->copied_ahead = state_.copied_ahead; });
  } else if (result->status().code() == StatusCode::kCancelled && why_cancelled_) {
    *result = CopyOf(*why_cancelled_);
  }
}

Result<AsyncSaveReport> AsyncJob::Write(Coordinator& background) {
  const Status ready = AwaitReady();
  AddStaging();
  AddWait();
  Result<AsyncSaveReport> result = WriteIn(background, ready);
  EndCopy();
  AddFacts(&result);
  // The destructor is too late: a caller that has received the outcome may keep the handle and
  // destroy the storage.
  staged_file_.reset();
  samples_.reset();
  session_.reset();
  return result;
}

/// Returns when no thread copies any more. In waves one may, while nothing is written any more.
void AsyncJob::EndCopy() {
  if (staged_file_ != nullptr) {
    staged_file_->Discard(
        Guarded([] { return Status(StatusCode::kCancelled, "the save has ended"); }));
  }
  std::unique_lock lock(mutex_);
  (void)Wait(changed_, lock, {}, [&] { return is_.copy == CopyState::kEnded; });
}

void AsyncJob::End(JobEvent event, Result<AsyncSaveReport> result) {
  JobActions actions;
  {
    const std::scoped_lock lock(mutex_);
    actions = Take(event);
  }
  if (actions.tell) {
    Tell(result.status());  // It was never staged.
  }
  if (actions.deliver) {
    ReportOutcome(
        what_, rank_, result.status(), result.ok() ? &*result : nullptr,
        deferred() ? "is with the agent, which writes it if this process ends" : "is durable");
    outcome_.Deliver(std::move(result));
    FlushTraceOf(rank_);  // Last: its file may be on a storage that hangs.
  }
}

void AsyncJob::Cancel(Status why) {
  {
    const std::scoped_lock lock(mutex_);
    if (!why_cancelled_) {
      why_cancelled_ = std::move(why);
    }
  }
  stop_.request_stop();
}

bool AsyncJob::begun() {
  const std::scoped_lock lock(mutex_);
  return is_.write == WriteState::kBegun || is_.write == WriteState::kEnded;
}

bool AsyncJob::agreed() {
  const std::scoped_lock lock(mutex_);
  return is_.copy != CopyState::kUnplanned;
}

std::vector<std::string> AsyncJob::differing_tensors() {
  const std::scoped_lock lock(mutex_);
  return differing_tensors_;
}

std::vector<std::string> AsyncJob::differing_objects() {
  const std::scoped_lock lock(mutex_);
  return differing_objects_;
}

bool AsyncJob::stuck() {
  const std::scoped_lock lock(mutex_);
  return is_.deadline == DeadlineState::kStuck;
}

void AsyncJob::Watch(const std::stop_token& ended) {
  std::unique_lock lock(mutex_);
  const auto comes = [&](TimePoint at) {  // Before the save has ended.
    return !WaitUntil(changed_, lock, ended, at, [&] { return is_.write == WriteState::kEnded; }) &&
           !ended.stop_requested();
  };
  const auto missed = [&](StatusCode code, const char* more) {
    return Guarded([&] {
      return Status(code, what_ + ": not done before its deadline of " +
                              std::to_string(options_.deadline->count()) + " ms" + more);
    });
  };
  if (!comes(start_ + *options_.deadline)) {
    return;
  }
  (void)Take(JobEvent::kDeadlinePassed);
  lock.unlock();
  Cancel(missed(StatusCode::kCancelled, ""));
  lock.lock();
  if (!comes(Now() + options_.stuck_grace)) {
    return;
  }
  lock.unlock();
  End(JobEvent::kGracePassed,
      missed(StatusCode::kUnavailable,
             ", and the storage does not return from what it was asked to do"));
}

}  // namespace varve
