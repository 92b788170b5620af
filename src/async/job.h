/// One asynchronous save, from the call to its end.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "async/job_machine.h"
#include "async/start.h"
#include "async/submitter.h"
#include "async/torn_samples.h"
#include "base/guarded.h"
#include "base/time_source.h"
#include "pipeline/staged_file.h"
#include "pipeline/staging_pool.h"
#include "save/session.h"
#include "save/tensor_source.h"
#include "varve/async_save.h"
#include "varve/coordinator.h"

namespace varve {

/// Where a save is made.
struct JobPlace {
  Storage& storage;
  int rank = 0;
  Submitter* submitter = nullptr;  ///< Takes copies that another process writes; null: none does.
  bool may_use_devices = true;     ///< Whether tensors may be on devices.
  bool pins = true;                ///< Whether memory that devices copy to is registered.
};

/// How a save has ended, told once: to a function and then to all that wait.
template <class Report>
class Outcome {
 public:
  explicit Outcome(std::function<void(const Result<Report>&)> function)
      : function_(std::move(function)) {}

  void Deliver(Result<Report> outcome) {
    if (function_) {
      (void)Guarded([&] { function_(outcome); });
    }
    promise_.set_value(std::move(outcome));
  }
  [[nodiscard]] std::shared_future<Result<Report>> future() const { return future_; }

 private:
  std::function<void(const Result<Report>&)> function_;
  std::promise<Result<Report>> promise_;
  std::shared_future<Result<Report>> future_ = promise_.get_future().share();
};

/// The account of a save's steps, and of the threads that make them, is at the top of job.cc.
class AsyncJob {
 public:
  /// Where `ready` is an error, this rank takes part only to let the save fail with it.
  AsyncJob(State state, std::string path, AsyncSaveOptions options, WriteWhen when,
           const JobPlace& place, Status ready);
  AsyncJob(const AsyncJob&) = delete;
  AsyncJob& operator=(const AsyncJob&) = delete;
  ~AsyncJob() { destroyed_.request_stop(); }

  /// Makes step 1. Takes part in the ranks' exchange also after a local error. Errors: the
  /// session's; the caller then calls Complete.
  Status Plan(Coordinator& coordinator, const Status& ready);
  /// Says with which other deferred saves this one goes. Called before Stage for deferred saves.
  void SetGroup(std::shared_ptr<const DeferredGroup> group) { group_ = std::move(group); }
  /// Makes step 2.
  void Stage(StagingPool& pool, StagingPool::Ticket ticket, int threads);
  /// Makes steps 3 and 4. Staging memory is free when this returns; the caller then calls Complete.
  /// Write, Stage, Complete and Cancel do not throw.
  Result<AsyncSaveReport> Write(Coordinator& background);

  /// Ends the save with this outcome, unless it has ended. Threads: safe.
  void Complete(Result<AsyncSaveReport> result) { End(JobEvent::kWriteEnded, std::move(result)); }
  /// Asks the save to end with this error. Threads: safe.
  void Cancel(Status why);
  /// Likewise, with Cancelled.
  void CancelByCaller() { Cancel({StatusCode::kCancelled, what_ + ": cancelled"}); }

  /// Returns true once other ranks may have received messages about the save: no newer save
  /// replaces it then.
  [[nodiscard]] bool begun();
  /// Returns true once this rank knows that the ranks have settled who writes what. The others know
  /// it too, but for those that the coordinator's answer did not reach.
  [[nodiscard]] bool agreed();
  /// Returns true when the save was given up because a call of the storage does not return.
  [[nodiscard]] bool stuck();

  /// Returns the tensors whose replicas differ. Requires: Plan has returned.
  [[nodiscard]] std::vector<std::string> differing_tensors();
  /// Returns the plain values that ranks hold different ones of, likewise.
  [[nodiscard]] std::vector<std::string> differing_objects();

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Returns "save PATH", for messages. Made once, so that messages need no memory later.
  [[nodiscard]] const std::string& what() const { return what_; }
  /// Returns the id of the save. Requires: planned and not yet written.
  [[nodiscard]] const SaveId& save_id() const { return session_->settled().identity.save_id; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] Storage& storage() const { return storage_; }
  [[nodiscard]] const StagedSaveOptions& options() const { return options_; }
  /// Returns a device that some tensor is on; nothing when all are in host memory.
  [[nodiscard]] std::optional<int> device() const { return device_; }
  [[nodiscard]] bool deferred() const { return when_ == WriteWhen::kDeferred; }
  [[nodiscard]] std::shared_future<Status> staged() const { return staged_future_; }
  /// Of a deferred save the outcome is that of submitting it.
  [[nodiscard]] std::shared_future<Result<AsyncSaveReport>> done() const {
    return outcome_.future();
  }

 private:
  Status Copy(StagingPool& pool, StagingPool::Ticket ticket, int threads);
  void NoteDeviceBytes();
  /// Takes an event. The lock is held.
  JobActions Take(JobEvent event);
  void Tell(const Status& staged);
  void End(JobEvent event, Result<AsyncSaveReport> result);
  void AllowWriting(JobEvent event, const Status& ready);
  /// Waits until there is a copy to write. Errors: the cause, when there will be none.
  Status AwaitReady();
  Status CopyAndSubmit(StagingPool& pool, StagingPool::Ticket ticket, int threads);
  Status Submit(std::uint64_t ticket, Status staged);
  void AddStaging();
  void AddWait();
  Result<AsyncSaveReport> WriteIn(Coordinator& background, const Status& ready);
  void AddFacts(Result<AsyncSaveReport>* result);
  [[nodiscard]] bool HasCopyInWaves() const {
    return staged_file_ != nullptr && staged_file_->in_waves();
  }
  void EndCopy();
  void Watch(const std::stop_token& ended);

  const State state_;
  const std::optional<int> device_ = DeviceOf(state_);
  const std::string path_;
  const std::string what_ = "save " + path_;
  Storage& storage_;
  const int rank_;
  Submitter* const submitter_;
  const bool may_use_devices_;
  const bool pins_;
  const WriteWhen when_;
  std::shared_ptr<const DeferredGroup> group_;  // Null unless deferred.
  const Status callers_ready_;
  AsyncSaveOptions options_;  // With a stop token of this save's own.
  Outcome<AsyncSaveReport> outcome_{std::move(options_.on_done)};
  const TimePoint start_ = Now();
  std::stop_source stop_;
  std::unique_ptr<SaveSession> session_;
  Status watched_;  // Error when the watchdog's thread could not start.
  std::optional<Result<TornSamples>> samples_;
  std::unique_ptr<StagedFile> staged_file_;
  std::optional<AsyncSaveReport>
      submitted_;             // The report of a deferred save, when the agent has it.
  std::uint64_t ticket_ = 0;  // Of the save where another process writes it.
  SubmissionState with_other_ = SubmissionState::kNo;

  std::promise<Status> staged_promise_;
  std::shared_future<Status> staged_future_ = staged_promise_.get_future().share();

  std::mutex mutex_;  // Guards all members below.
  std::condition_variable_any changed_;
  JobState is_;
  Status ready_;  // From kMay on: why nothing will be written.
  std::vector<std::string> differing_tensors_;
  std::vector<std::string> differing_objects_;
  std::vector<Phase> staging_;  // The phase of step 2.
  double staging_seconds_ = 0;
  std::uint64_t device_bytes_ = 0;
  std::uint64_t pageable_bytes_ = 0;
  StagingMemory staging_memory_;
  std::optional<Status> why_cancelled_;

  std::optional<std::stop_callback<std::function<void()>>> users_stop_;
  std::stop_source destroyed_;
  Thread watchdog_;  // Last: it uses all of the above.
};

// ---- what the calls that begin saves ask of a stager (stager.cc) ----

/// As Stager::Make, for saves that the executor writes to this storage.
Result<std::unique_ptr<Stager>> MakeStager(const StagerOptions& options,
                                           std::unique_ptr<Coordinator> background,
                                           std::shared_ptr<SaveExecutor> executor,
                                           Storage& executors_storage);

/// Returns where a job of this stager is made.
JobPlace PlaceFor(Stager& stager, Storage& storage, int rank);

/// Plans `job` with the other ranks, and copies or queues it: all that the call does. A job that
/// fails on the way is complete when this returns.
void StartJob(Stager& stager, const std::shared_ptr<AsyncJob>& job, Coordinator& coordinator);

}  // namespace varve
