// The steps of an asynchronous save, and who makes them:
//  1. Plan, on the caller's thread: the ranks settle who writes what (exchange A of
//     save_coordinated.cc). Here and not later, because the copy is made of what this rank will
//     write and of nothing else. Callers make their calls in the same order on all ranks, so this
//     exchange needs no order of its own.
//  2. Stage, on the caller's thread, or on the stager's copying thread for an overlapped save: the
//     file's data are copied into staging memory. Memory is asked for in the order of the calls; a
//     save that had to wait for memory held by a later one, which in turn waits for its turn to
//     be written, would wait for ever. From here on the tensors are not looked at.
//  3. Write, on the stager's writing thread, in the order of the calls and so in the same order on
//     all ranks: claim the name, write the copy, publish (exchanges on the background coordinator).
//     A rank whose copy failed, or that was told to give up, says so in the first of them; silence
//     would cost its peers their deadline. Nothing has been written then.
//  4. If that failed for want of space or storage and all ranks agree, once more from the claim on.
//     They must agree: a rank that was lost, or is out of step, does not come.
// In waves, steps 2 and 3 run at the same time. The save ends when it is published or has failed;
// staging memory is free again before anyone is told.

#include "checkpoint/async_job.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

namespace varve {
namespace {

/// Ranks come to the agreement about a retry right after they have learnt of the failure.
constexpr auto kRetryAgreement = std::chrono::seconds(30);

/// True for failures that may pass.
bool IsWorthARetry(const Status& status) {
  return status.code() == StatusCode::kOutOfSpace || status.code() == StatusCode::kUnavailable;
}

bool WantsTornCheck(const AsyncSaveOptions& options) {
  return options.check_torn.value_or(std::getenv("VARVE_DEBUG") != nullptr);
}

}  // namespace

AsyncJob::AsyncJob(State state, std::string path, AsyncSaveOptions options)
    : state_(std::move(state)), path_(std::move(path)), options_(std::move(options)) {
  users_stop_.emplace(options_.save.stop, [this] {
    Cancel({StatusCode::kCancelled, "save " + path_ + ": cancelled"});
  });
  options_.save.stop = stop_.get_token();
  session_ = MakeSaveSession(state_, path_, options_.save, Claim::kApart);
  if (options_.deadline) {
    watchdog_ = std::jthread([this](const std::stop_token& ended) { Watch(ended); });
  }
}

Status AsyncJob::Plan(Coordinator& coordinator, const Status& ready) {
  VARVE_RETURN_IF_ERROR(session_->Plan(coordinator, ready.ok() ? options_.ready : ready));
  if (WantsTornCheck(options_)) {
    samples_.emplace(session_->work().segments);
  }
  return Status::Ok();
}

void AsyncJob::Stage(StagingPool& pool, StagingPool::Ticket ticket, int threads) {
  Status status;
  try {
    status = Copy(pool, ticket, threads).Annotate("save " + path_);
  } catch (const std::bad_alloc&) {
    status = NoMemory();
  }
  AllowWriting(status);
  {
    const std::scoped_lock lock(mutex_);
    copied_ = true;
    changed_.notify_all();
  }
  Announce(status);
}

Status AsyncJob::NoMemory() const {
  return {StatusCode::kOutOfSpace, "save " + path_ + ": the system has no memory left"};
}

Status AsyncJob::Copy(StagingPool& pool, StagingPool::Ticket ticket, int threads) {
  const FileWork& work = session_->work();
  const std::size_t blocks =
      work.segments.empty() ? 0 : StagedFile::BlocksFor(work.segments, work.block_bytes);
  VARVE_ASSIGN_OR_RETURN(auto memory, pool.Reserve(ticket, blocks, options_.save.stop));
  if (work.segments.empty()) {
    return Status::Ok();
  }
  staged_file_ = std::make_unique<StagedFile>(work.segments, work.block_bytes, std::move(memory));
  if (staged_file_->in_waves()) {
    AllowWriting(Status::Ok());
  }
  return staged_file_->Fill(threads, options_.save.stop, [&] {
    return samples_ ? samples_->Compare(work.name_of) : Status::Ok();
  });
}

void AsyncJob::AllowWriting(const Status& ready) {
  const std::scoped_lock lock(mutex_);
  if (!ready_) {
    ready_ = ready;
  }
  changed_.notify_all();
}

void AsyncJob::Announce(const Status& staged) {
  {
    const std::scoped_lock lock(mutex_);
    if (announced_) {
      return;
    }
    announced_ = true;
    staging_seconds_ = std::chrono::duration<double>(Clock::now() - start_).count();
  }
  staged_promise_.set_value(staged);
  if (options_.on_staged) {
    options_.on_staged(staged);
  }
}

Status AsyncJob::AwaitReady() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ready_.has_value(); });
  begun_ = true;
  return why_cancelled_.value_or(*ready_);
}

Result<SaveReport> AsyncJob::Write(Coordinator& background) {
  const Status ready = AwaitReady();
  int attempt = 1;
  Result<SaveReport> result = WriteOnce(background, ready);
  // Of the failure and the options, which all ranks have alike: all come to agree, or none does.
  while (attempt <= options_.retries && IsWorthARetry(result.status()) &&
         AgreeToRetry(background, attempt, ready).ok()) {
    const auto pause = options_.retry_delay * (1 << std::min(attempt - 1, 10));
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, options_.save.stop, pause, [] { return false; });
    }
    ++attempt;
    result = WriteOnce(background, Status::Ok());
  }
  if (result.ok()) {
    const std::scoped_lock lock(mutex_);
    result->attempts = attempt;
    result->staging_seconds = staging_seconds_;
    result->in_waves = staged_file_ != nullptr && staged_file_->in_waves();
  } else if (attempt > 1) {
    result = result.status().Annotate(std::to_string(attempt) + " attempts");
  }
  LetGo();
  return result;
}

/// Gives memory, locks and storage back. Not left to the destructor: whoever is told of the end may
/// keep the handle, and take the storage away.
void AsyncJob::LetGo() {
  if (staged_file_ != nullptr) {
    staged_file_->Discard({StatusCode::kCancelled, "the save has ended"});
  }
  {
    // In waves the copying may still be under way, and about to look at all this.
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return copied_; });
  }
  staged_file_.reset();
  samples_.reset();
  session_.reset();
}

Result<SaveReport> AsyncJob::WriteOnce(Coordinator& background, const Status& ready) {
  Result<SaveReport> result = NoMemory();
  try {
    result = session_->Write(background, staged_file_.get(), ready);
  } catch (const std::bad_alloc&) {
    return NoMemory();  // Thrown out of the thread it would end training.
  }
  if (!result.ok() && result.status().code() == StatusCode::kCancelled) {
    const std::scoped_lock lock(mutex_);
    if (why_cancelled_) {
      return *why_cancelled_;
    }
  }
  return result;
}

Status AsyncJob::AgreeToRetry(Coordinator& background, int attempt, const Status& ready) {
  const bool copy_is_gone = staged_file_ != nullptr && staged_file_->in_waves();
  const bool can = ready.ok() && !copy_is_gone && !stop_.stop_requested();
  Status mine = can ? Status::Ok() : FailedPrecondition("cannot write it again");
  if (!options_.save.coordinate || background.size() == 1) {
    return mine;
  }
  const std::string word = "retry " + std::to_string(attempt);
  return Exchange(background, "save " + path_, can ? Contribution(word) : Contribution(mine),
                  Clock::now() + kRetryAgreement,
                  [&](const std::vector<std::string>& ranks) -> Result<std::vector<std::string>> {
                    for (const std::string& theirs : ranks) {
                      if (theirs != word) {
                        return Unavailable("the ranks are out of step");
                      }
                    }
                    return std::vector<std::string>(ranks.size());
                  })
      .status();
}

void AsyncJob::Complete(Result<SaveReport> result) {
  {
    const std::scoped_lock lock(mutex_);
    if (completed_) {
      return;
    }
    completed_ = true;
  }
  Announce(result.status());  // If it was never staged.
  changed_.notify_all();
  if (options_.on_done) {
    options_.on_done(result);
  }
  done_promise_.set_value(std::move(result));
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
  return begun_;
}

bool AsyncJob::stuck() {
  const std::scoped_lock lock(mutex_);
  return stuck_;
}

void AsyncJob::Watch(const std::stop_token& ended) {
  std::unique_lock lock(mutex_);
  const auto over = [&] { return completed_; };
  if (changed_.wait_until(lock, ended, start_ + *options_.deadline, over) ||
      ended.stop_requested()) {
    return;
  }
  lock.unlock();
  const std::string what = "save " + path_ + ": not done before its deadline of " +
                           std::to_string(options_.deadline->count()) + " ms";
  Cancel({StatusCode::kCancelled, what});
  lock.lock();
  if (changed_.wait_for(lock, ended, options_.stuck_grace, over) || ended.stop_requested()) {
    return;
  }
  stuck_ = true;
  lock.unlock();
  Complete(Unavailable(what + ", and the storage does not return from what it was asked to do"));
}

}  // namespace varve
