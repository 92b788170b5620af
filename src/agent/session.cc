#include "agent/session.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include <poll.h>

#include "async/failure_note.h"
#include "async/file_channel.h"
#include "async/submitted.h"

namespace varve {
AgentSession::AgentSession(Surroundings surroundings, std::shared_ptr<PoolMemory> pool,
                           std::uint64_t first_turn)
    : around_(std::move(surroundings)),
      pool_(std::move(pool)),
      next_turn_(first_turn),
      worker_([this] { Work(); }) {}

AgentSession::~AgentSession() { Abandon(); }

void AgentSession::Abandon() {
  const std::scoped_lock lock(mutex_);
  trainer_lives_ = false;
  abandoned_ = true;
  for (const auto& [turn, job] : jobs_) {
    job->stop.request_stop();
  }
  changed_.notify_all();
}

bool AgentSession::connection_has_ended() const {
  pollfd connection{around_.trainer->fd(), 0, 0};
  return silent_ || (::poll(&connection, 1, 0) == 1 && (connection.revents & POLLHUP) != 0);
}

Status AgentSession::Submit(std::uint64_t turn, std::string_view encoded,
                            std::shared_ptr<ValidityPage> lease) {
  auto job = std::make_shared<Job>();
  job->lease = std::move(lease);
  VARVE_ASSIGN_OR_RETURN(job->save, DecodeSubmission(encoded, pool_->blocks()));
  const std::scoped_lock lock(mutex_);
  if (turn < next_turn_ || jobs_.contains(turn) || passed_.contains(turn)) {
    return FailedPrecondition("turn " + std::to_string(turn) + " is over");
  }
  jobs_[turn] = std::move(job);
  changed_.notify_all();
  return Status::Ok();
}

void AgentSession::Pass(std::uint64_t turn) {
  const std::scoped_lock lock(mutex_);
  if (turn >= next_turn_ && !jobs_.contains(turn)) {
    passed_.insert(turn);
    changed_.notify_all();
  }
}

void AgentSession::Forget(std::uint64_t turn) {
  const std::scoped_lock lock(mutex_);
  const auto found = jobs_.find(turn);
  if (found == jobs_.end() || !found->second->save.deferred || found->second->writing) {
    return;
  }
  jobs_.erase(found);
  if (turn >= next_turn_) {
    passed_.insert(turn);  // The worker takes turns in order, and must not wait for this one.
    changed_.notify_all();
  }
}

void AgentSession::Cancel(std::uint64_t turn) {
  const std::scoped_lock lock(mutex_);
  if (const auto found = jobs_.find(turn); found != jobs_.end()) {
    found->second->stop.request_stop();
  }
}

void AgentSession::TrainerExited(bool memory_is_ours) {
  std::vector<Ticket> deferred;
  {
    const std::scoped_lock lock(mutex_);
    if (!trainer_lives_) {
      return;
    }
    trainer_lives_ = false;
    deferred = TakeDeferredSaves();
    memory_is_ours_ = memory_is_ours;
    releasing_ = memory_is_ours;
    alone_since_ = Clock::now();
    changed_.notify_all();
  }
  around_.held->Orphan(around_.number);
  // Deferred saves get threads of their own. A hundred gigabytes take ten seconds or more, in which
  // the calling thread would answer no messages. The worker may have to write for minutes before it
  // comes to them.
  StartEnders(std::move(deferred));
  if (!memory_is_ours) {
    return;
  }
  const auto release = [this] {
    ReleaseMemory();
    {
      const std::scoped_lock lock(mutex_);
      releasing_ = false;
    }
    around_.changed();
  };
  try {
    releaser_ = std::jthread(release);
  } catch (const std::exception&) {  // No thread, or no memory for one.
    release();
  }
}

bool AgentSession::over() {
  const std::scoped_lock lock(mutex_);
  return over_ && !releasing_ && enders_at_work_ == 0;
}

std::size_t AgentSession::pending() {
  const std::scoped_lock lock(mutex_);
  return static_cast<std::size_t>(std::count_if(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    return !trainer_lives_ || !entry.second->save.deferred;
  }));
}

bool AgentSession::trainer_lives() {
  const std::scoped_lock lock(mutex_);
  return trainer_lives_;
}

bool AgentSession::memory_is_ours() {
  const std::scoped_lock lock(mutex_);
  return memory_is_ours_;
}

std::vector<AgentReport::File> AgentSession::Files() {
  const std::scoped_lock lock(mutex_);
  std::vector<AgentReport::File> files;
  files.reserve(jobs_.size());
  for (const auto& [turn, job] : jobs_) {
    files.push_back({job->save.path, job->save.settled.identity.rank, job->save.image.bytes(),
                     job->writing, trainer_lives_});
  }
  return files;
}

AgentSession::JobPtr AgentSession::Next(std::uint64_t* turn) {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto waits_for_the_end = [&](std::uint64_t at) {
      const auto found = jobs_.find(at);
      return trainer_lives_ && found != jobs_.end() && found->second->save.deferred;
    };
    while (passed_.erase(next_turn_) > 0 || waits_for_the_end(next_turn_)) {
      ++next_turn_;
    }
    const auto idle = std::find_if(jobs_.begin(), jobs_.end(),
                                   [](const auto& entry) { return !entry.second->writing; });
    // A trainer that has exited leaves gaps between turns.
    if (!trainer_lives_ && idle != jobs_.end()) {
      next_turn_ = idle->first;
    }
    const auto found = jobs_.find(next_turn_);
    if (found != jobs_.end() && !found->second->writing) {
      found->second->writing = true;
      *turn = next_turn_++;
      return found->second;
    }
    if (!trainer_lives_) {
      return nullptr;
    }
    changed_.wait(lock);
  }
}

void AgentSession::Work() {
  std::uint64_t turn = 0;
  while (const JobPtr job = Next(&turn)) {
    WriteAndEnd(turn, *job);
  }
  {
    const std::scoped_lock lock(mutex_);
    over_ = true;
  }
  around_.changed();
}

void AgentSession::WriteAndEnd(std::uint64_t turn, Job& job) {
  try {
    // An older deferred save is not wanted when a newer one has been written.
    if (!job.save.deferred || !job.stop.stop_requested()) {
      WriteOne(turn, job);
    }
  } catch (const std::exception& error) {  // No memory or no thread: only this save fails.
    SendReport(turn, Unavailable("save " + job.save.path + ": the agent: " + error.what()));
  }
  {
    const std::scoped_lock lock(mutex_);
    jobs_.erase(turn);
    changed_.notify_all();
  }
  if (memory_is_ours()) {
    ReleaseMemory();
  }
  around_.changed();
}

std::vector<AgentSession::Ticket> AgentSession::TakeDeferredSaves() {
  std::vector<Ticket> taken;
  for (const auto& [turn, job] : jobs_) {
    if (job->save.deferred && !job->writing) {
      job->writing = true;
      taken.emplace_back(turn, job);
    }
  }
  return taken;
}

/// Writes the newest save first, and after a while the older ones beside it: no agent knows which
/// of them the other ranks have. An agent never leaves the newest for an older one, for a rank that
/// dies later may have only the newest.
void AgentSession::StartEnders(std::vector<Ticket> turns) {
  if (turns.empty()) {
    return;
  }
  const Ticket newest = turns.back();
  turns.pop_back();
  Start(&ender_, [this, newest] { WriteAndEnd(newest.first, *newest.second); });
  if (turns.empty()) {
    return;
  }
  Start(&older_ender_, [this, newest, older = std::move(turns)] {
    AwaitEndOf(newest.first, *older.back().second);
    for (auto at = older.rbegin(); at != older.rend(); ++at) {
      WriteAndEnd(at->first, *at->second);
    }
  });
}

void AgentSession::Start(std::jthread* thread, const std::function<void()>& work) {
  {
    const std::scoped_lock lock(mutex_);
    ++enders_at_work_;
  }
  const auto all = [this, work] {
    work();
    {
      const std::scoped_lock lock(mutex_);
      --enders_at_work_;
    }
    around_.changed();
  };
  try {
    *thread = std::jthread(all);
  } catch (const std::exception&) {  // No thread, or no memory for one: the caller does the work.
    all();
  }
}

/// Waits for the end of the newest save, for at most a quarter of peer_timeout, or until `older` is
/// no longer wanted.
void AgentSession::AwaitEndOf(std::uint64_t newest, const Job& older) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, around_.peer_timeout / 4,
                    [&] { return !jobs_.contains(newest) || older.stop.stop_requested(); });
}

/// Records that a save was written, and cancels the older deferred ones.
void AgentSession::IsWritten(std::uint64_t turn, bool deferred) {
  const std::scoped_lock lock(mutex_);
  if (deferred && !one_is_written_) {
    one_is_written_ = Clock::now();
  }
  for (const auto& [other, job] : jobs_) {
    if (other < turn && job->save.deferred) {
      job->stop.request_stop();
    }
  }
  changed_.notify_all();
}

void AgentSession::WriteOne(std::uint64_t turn, Job& job) {
  const FileIdentity& identity = job.save.settled.identity;
  SubmittedFile file;
  const auto blocks = pool_->At(job.save.image.blocks);
  const Result<AsyncSaveReport> report = WriteSubmission(
      job.save, {blocks, [&] { return job.lease->Valid(); }}, job.stop.get_token(),
      [&] { return GiveUp(job); }, &file);
  if (report.ok()) {
    IsWritten(turn, job.save.deferred);
    auto page = ValidityPage::Make();
    const std::scoped_lock lock(mutex_);  // Not when the trainer has just been abandoned.
    if (page.ok() && !blocks.empty() && !abandoned_) {
      HeldFile held{job.save.path,   file.name,       identity.save_id, identity.rank,
                    file.data_begin, pool_->blocks(), job.save.image};
      around_.held->Add(
          {std::move(held), around_.number, turn, std::nullopt, pool_, *page, job.lease});
      if (!trainer_lives_) {
        around_.held->Orphan(around_.number);
      }
    }
  } else if (!trainer_lives()) {
    if (job.gave_up) {
      Withdraw(job.save.settled, job.save.path, report.status());  // Ranks that come later would
                                                                   // wait.
    }
    if (!identity.coordinated || identity.rank == 0) {
      NoteFailure(PosixStorage(), job.save.path, report.status());  // No other process will.
    }
  }
  SendReport(turn, report);
}

void AgentSession::SendReport(std::uint64_t turn, const Result<AsyncSaveReport>& report) {
  AgentMessage done{AgentVerb::kDone, turn, {}, {}};
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

/// Returns the time until which this agent waits for other ranks' agents. The lock is held.
AgentSession::Clock::time_point AgentSession::GiveUpTime(const Job& job) const {
  if (!job.save.deferred) {
    return alone_since_ + around_.peer_timeout;
  }
  // All ranks came to write the other save, as they do when their trainers are dead: ranks that
  // have this save have begun to write it.
  if (one_is_written_) {
    return *one_is_written_ + around_.peer_timeout / 10;
  }
  // A rank may notice only after minutes that another has died, and exit because of that.
  return alone_since_ + 15 * around_.peer_timeout;
}

Status AgentSession::GiveUp(Job& job) {
  const std::scoped_lock lock(mutex_);
  if (job.save.deferred && job.stop.stop_requested()) {
    return {StatusCode::kCancelled, "no longer wanted"};
  }
  if (trainer_lives_ || Clock::now() < GiveUpTime(job)) {
    return Status::Ok();
  }
  job.gave_up = true;
  return Unavailable("the trainer was killed, and the agents of other ranks have sent nothing");
}

void AgentSession::ReleaseMemory() {
  std::vector<bool> wanted(pool_->blocks());
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [turn, job] : jobs_) {
      for (const std::uint64_t block : job->save.image.blocks) {
        wanted[block] = true;
      }
    }
  }
  around_.held->MarkBlocks(around_.number, &wanted);
  pool_->Release(wanted);
}

}  // namespace varve
