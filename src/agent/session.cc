#include "agent/session.h"

#include <algorithm>
#include <utility>

#include "agent/agreement.h"
#include "async/attempts.h"
#include "async/file_channel.h"
#include "base/events.h"
#include "base/guarded.h"
#include "base/trace.h"

namespace varve {
namespace {

/// Returns the event that says that an action could not be begun.
SessionEvent Failed(const SessionAction& action) {
  if (const auto* write = std::get_if<session_action::Write>(&action)) {
    return session_event::WriteEnded{write->ticket, false};
  }
  if (std::holds_alternative<session_action::Agree>(action)) {
    return session_event::Agreed{};
  }
  if (std::holds_alternative<session_action::Release>(action)) {
    return session_event::Released{};
  }
  return session_event::TimePassed{};
}

/// Returns an error when the agent has waited for ranks that have sent nothing `until` now.
Status CheckWaitingTime(std::optional<TimePoint> until) {
  return until && Now() >= *until
             ? Unavailable(
                   "the trainer has ended or left its agent, and the agents of other ranks have "
                   "sent nothing")
             : Status::Ok();
}

}  // namespace

AgentSession::AgentSession(Surroundings surroundings) : around_(std::move(surroundings)) {
  state_.timeout = around_.peer_timeout;
  state_.next_ticket = around_.first_ticket;
  state_.trainer_since = Now();
}

AgentSession::~AgentSession() {
  if (!over()) {
    Abandon();
  }
}

Status AgentSession::Submit(std::uint64_t ticket, Submission save,
                            std::shared_ptr<ValidityPage> lease) {
  auto job = std::make_shared<Job>();
  if (!save.access.empty()) {
    SharedAccess* const access = around_.storage.extras().shared_access;
    if (access == nullptr) {
      return Unimplemented("the agent cannot reach the storage of " + save.path);
    }
    VARVE_ASSIGN_OR_RETURN(job->storage, access->Open(save.path, save.access));
  }
  job->save = std::move(save);
  job->lease = std::move(lease);
  const std::scoped_lock lock(mutex_);
  if (!CanBeSubmitted(state_, ticket)) {
    return FailedPrecondition("save " + job->save.path +
                              ": the agent has passed over this submission (number " +
                              std::to_string(ticket) + " of its trainer), or already has it");
  }
  const bool deferred = job->save.deferred.has_value();
  const std::string path = job->save.path;
  jobs_[ticket] = std::move(job);
  TakeLocked(session_event::Submitted{ticket, deferred, path});
  return Status::Ok();
}

bool AgentSession::LeaveIfSilentForLong() {
  Take(session_event::TimePassed{});
  return trainer() == TrainerState::kBack;
}

TrainerState AgentSession::trainer() const {
  const std::scoped_lock lock(mutex_);
  return state_.trainer;
}

bool AgentSession::connection_has_ended() const {
  return trainer() != TrainerState::kAttached || !around_.trainer->IsOpen();
}

bool AgentSession::trainer_lives() const {
  const std::scoped_lock lock(mutex_);
  return Lives(state_);
}

bool AgentSession::over() const {
  const std::scoped_lock lock(mutex_);
  return IsOver(state_);
}

std::size_t AgentSession::pending() const {
  const std::scoped_lock lock(mutex_);
  return Pending(state_);
}

std::vector<AgentReport::File> AgentSession::Files() const {
  const std::scoped_lock lock(mutex_);
  std::vector<AgentReport::File> files;
  files.reserve(jobs_.size());
  for (const auto& [ticket, job] : jobs_) {
    const SessionState::Save& save = state_.saves.at(ticket);
    const std::chrono::duration<double> since = Now() - save.since;
    files.push_back({job->save.path, job->save.settled.identity.rank, job->save.image.bytes(),
                     std::string(Name(save.is)), since.count(), Lives(state_)});
  }
  return files;
}

// ---- from events to actions ----

void AgentSession::Take(const SessionEvent& event) {
  const std::scoped_lock lock(mutex_);
  TakeLocked(event);
}

void AgentSession::TakeLocked(const SessionEvent& event) {
  const TrainerState before = state_.trainer;
  std::vector<SessionEvent> events{event};
  for (std::size_t i = 0; i < events.size(); ++i) {
    std::optional<SessionState> seen;
    (void)Guarded([&] {
      if (EventsAreTaken()) {
        seen = state_;
      }
    });
    const std::vector<SessionAction> actions = Step(&state_, SessionEvent(events[i]), Now());
    if (seen) {
      ReportChanges(*seen);
    }
    for (const SessionAction& action : actions) {
      const Status begun = Guarded([&] { Do(action); });
      if (!begun.ok()) {  // No memory for its place in a queue.
        events.push_back(Failed(action));
      }
    }
  }
  if (state_.trainer != before && state_.trainer == TrainerState::kExited) {
    around_.held.Orphan(around_.number);
  }
}

Event AgentSession::EventOf(const Job& job, EventLevel level, const std::string& what) const {
  const FileIdentity& identity = job.save.settled.identity;
  return {.level = level,
          .rank = static_cast<int>(identity.rank),
          .message = "save " + job.save.path + ": " + what,
          .fields = {{"trainer", std::to_string(around_.pid)},
                     {"save_id", ToString(identity.save_id)}}};
}

void AgentSession::ReportChanges(const SessionState& before) const noexcept {
  if (before.trainer != state_.trainer) {
    ReportEvent([&] {
      return Event{.level = EventLevel::kInfo,
                   .message = "trainer: " + std::string(Name(before.trainer)) + " -> " +
                              std::string(Name(state_.trainer)),
                   .fields = {{"trainer", std::to_string(around_.pid)}}};
    });
  }
  for (const auto& [ticket, known] : jobs_) {  // Those that end are still there.
    const Job& job = *known;
    const auto was = before.saves.find(ticket);
    const auto is = state_.saves.find(ticket);
    const std::string_view from = was == before.saves.end() ? "" : Name(was->second.is);
    const std::string_view to = is == state_.saves.end() ? "over" : Name(is->second.is);
    if (from != to) {
      ReportEvent([&] {
        return EventOf(job, EventLevel::kInfo,
                       std::string(from) + (from.empty() ? "" : " -> ") + std::string(to));
      });
    }
  }
}

/// Begins what an action asks for. The lock is held.
void AgentSession::Do(const SessionAction& action) {
  if (const auto* write = std::get_if<session_action::Write>(&action)) {
    Run(write->deferred ? deferred_thread_ : submitted_thread_,
        [this, ticket = write->ticket, job = jobs_.at(write->ticket)] { Write(ticket, job); });
  } else if (const auto* stop = std::get_if<session_action::Stop>(&action)) {
    jobs_.at(stop->ticket)->stop.request_stop();
  } else if (const auto* drop = std::get_if<session_action::Drop>(&action)) {
    jobs_.erase(drop->ticket);
  } else if (std::holds_alternative<session_action::Agree>(action)) {
    Kept kept;
    for (const auto& [ticket, job] : jobs_) {
      if (job->save.deferred) {
        kept[ticket] = job;
      }
    }
    Run(deferred_thread_, [this, kept = std::move(kept)] { Agree(kept); });
  } else if (std::holds_alternative<session_action::Release>(action)) {
    Run(memory_thread_, [this] { ReleaseMemory(); });
  } else {
    around_.held.ForgetAll(around_.number);
  }
}

void AgentSession::Run(SerialThread& thread, std::function<void()> work) {
  thread.Run(SerialThread::Task([this, work = std::move(work)] {
    work();
    around_.changed();
  }));
}

std::optional<TimePoint> AgentSession::EndOfWaiting(bool deferred) const {
  const std::scoped_lock lock(mutex_);
  return WaitsUntil(state_, deferred);
}

// ---- on the threads ----

void AgentSession::Write(std::uint64_t ticket, const JobPtr& job) {
  SubmittedFile file;
  // Without memory or a thread only this save fails.
  (void)Guarded([&] {
    const std::scoped_lock lock(mutex_);
    if (const auto found = written_.find(job->save.path); found != written_.end()) {
      job->save.replaces.push_back(found->second);
    }
    const std::chrono::duration<double> waited = Now() - job->submitted;
    job->save.phases.push_back({.name = "wait", .seconds = waited.count()});
  });
  auto report = Guarded([&] { return WriteJob(*job, &file); });
  if (!report.ok() && report.status().message().find(job->save.path) == std::string::npos) {
    report = report.status().Annotate("save " + job->save.path + ": the agent");
  }
  ReportEvent([&] {
    return EventOf(*job, report.ok() ? EventLevel::kInfo : EventLevel::kWarning,
                   report.ok()
                       ? "is durable, after " +
                             std::to_string(static_cast<int>(report->seconds * 1000)) + " ms"
                       : "has failed: " + report.status().ToString());
  });
  {
    const std::scoped_lock lock(mutex_);
    if (report.ok() && !file.published_as.empty()) {
      (void)Guarded([&] { written_[job->save.path] = file.published_as; });
    }
    // Not when the trainer has just been abandoned.
    if (report.ok() && !job->save.image.blocks.empty() && state_.trainer != TrainerState::kBack) {
      // A file that is not held is loaded from the disk.
      (void)Guarded([&] { Hold(ticket, *job, file); });
    }
  }
  FlushTraceOfAgent();
  Report(ticket, report);
  Take(session_event::WriteEnded{ticket, report.ok()});
}

Result<AsyncSaveReport> AgentSession::WriteJob(const Job& job, SubmittedFile* file) {
  const Submission& save = job.save;
  const bool deferred = save.deferred.has_value();
  const auto blocks = around_.memory->At(save.image.blocks);
  const LeasedMemory memory{blocks, [&] { return job.lease->Valid(); }};
  const std::stop_token stop = job.stop.get_token();
  bool gave_up = false;
  const auto give_up = [&] {
    if (deferred && stop.stop_requested()) {
      return Status(StatusCode::kCancelled, "no longer wanted");
    }
    Status status = CheckWaitingTime(EndOfWaiting(deferred));
    gave_up = gave_up || !status.ok();
    return status;
  };
  const auto has_exited = [&] { return EndOfWaiting(deferred).has_value(); };
  Storage& storage = StorageOf(job);
  auto report = WriteSubmission(save, storage, memory, stop, {give_up, has_exited}, file);
  if (!report.ok() && has_exited()) {
    const FileIdentity& rank = save.settled.identity;
    if (gave_up) {
      Withdraw({storage, rank, save.path}, report.status());
    }
    if (!rank.coordinated || rank.rank == 0) {
      NoteFailure(storage, save.path, report.status());
    }
  }
  return report;
}

void AgentSession::Hold(std::uint64_t ticket, const Job& job, const SubmittedFile& file) {
  auto page = ValidityPage::Make();
  if (!page.ok()) {
    return;  // It is loaded from the disk.
  }
  const FileIdentity& identity = job.save.settled.identity;
  HeldFile held{job.save.path,   file.name,         identity.save_id, identity.rank,
                file.data_begin, memory().blocks(), job.save.image};
  around_.held.Add({std::move(held), around_.number, ticket, std::nullopt, around_.memory,
                    std::move(*page), job.lease});
  if (state_.trainer == TrainerState::kExited) {
    around_.held.Orphan(around_.number);
  }
}

void AgentSession::Report(std::uint64_t ticket, const Result<AsyncSaveReport>& report) const {
  AgentMessage done{AgentVerb::kDone, ticket, {}, {}};
  if (report.ok()) {
    // In the message itself if it fits: a trainer that has no free descriptor receives it as well.
    Bytes encoded = EncodeReport(*report);
    if (encoded.size() < kMaxAgentPayload) {
      done.payload = Bytes(1, '\0') + encoded;
    } else if (auto blob = MakeBlob(encoded); blob.ok()) {
      done.fds.push_back(std::move(*blob));
    }
  } else {
    done.payload = EncodeRefusal(report.status());
  }
  (void)around_.trainer->Send(done);  // Fails when the trainer has exited.
}

/// Asks the other ranks' agents which of the kept saves they have.
void AgentSession::Agree(const Kept& kept) {
  const Submission& newest = kept.begin()->second->save;
  const auto chosen = Guarded([&] {
    KeptSaves mine{newest.settled.identity, *newest.deferred, {}};
    for (const auto& [ticket, job] : kept) {
      mine.ids.push_back(job->save.settled.identity.save_id);
    }
    return AgreeOnDeferred(mine, StorageOf(*kept.begin()->second), [&] {
      return AreWanted(kept) ? CheckWaitingTime(EndOfWaiting(true))
                             : Status(StatusCode::kCancelled, "no longer wanted");
    });
  });
  session_event::Agreed agreed;
  for (const auto& [ticket, job] : kept) {
    const SaveId& id = job->save.settled.identity.save_id;
    if (chosen.ok() && std::find(chosen->begin(), chosen->end(), id) != chosen->end()) {
      agreed.tickets.push_back(ticket);
    }
  }
  if (agreed.tickets.empty() && AreWanted(kept) && newest.settled.identity.rank == 0) {
    NoteFailure(StorageOf(*kept.begin()->second), newest.path,
                chosen.ok()
                    ? Unavailable("deferred: not all ranks had submitted it when they ended")
                    : chosen.status());
  }
  Take(agreed);
}

/// Returns true while a newer save has not replaced all of them.
bool AgentSession::AreWanted(const Kept& kept) {
  const std::scoped_lock lock(mutex_);
  return std::any_of(kept.begin(), kept.end(),
                     [&](const auto& entry) { return jobs_.contains(entry.first); });
}

void AgentSession::ReleaseMemory() {
  std::vector<bool> wanted(around_.memory->blocks());
  bool is_ours = false;  // Still: the trainer may have come back since.
  {
    const std::scoped_lock lock(mutex_);
    is_ours = state_.memory_is_ours;
    for (const auto& [ticket, job] : jobs_) {
      for (const std::uint64_t block : job->save.image.blocks) {
        wanted[block] = true;
      }
    }
  }
  if (is_ours) {
    around_.held.MarkBlocks(around_.number, &wanted);
    around_.memory->Release(wanted);
  }
  Take(session_event::Released{});
}

}  // namespace varve
