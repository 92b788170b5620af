/// The saves that an agent writes for one trainer.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "agent/agreement.h"
#include "agent/session_machine.h"
#include "agent/shared_memory.h"
#include "async/submission.h"
#include "base/time_source.h"
#include "varve/agent.h"
#include "varve/events.h"
#include "varve/storage.h"

namespace varve {

/// The threads and the memory of a session, and its connection to the trainer. Functions are called
/// while the session is locked, and return at once.
class SessionHost {
 public:
  enum class Lane : std::uint8_t { kSubmitted, kDeferred, kMemory };

  virtual ~SessionHost() = default;

  /// Lets a thread do the work, after the work that this lane has been given before.
  virtual void Run(Lane lane, std::function<void()> work) = 0;
  /// Returns where the blocks of the trainer's memory lie.
  virtual std::vector<const std::byte*> BlocksAt(const std::vector<std::uint64_t>& numbers) = 0;
  /// Returns the number of blocks of that memory.
  virtual std::uint64_t blocks() = 0;
  /// Keeps a written file in memory for those who load it.
  virtual void Hold(std::uint64_t ticket, const Submission& save, const SubmittedFile& file,
                    std::shared_ptr<ValidityPage> lease, bool orphan) = 0;
  /// Gives up the files that are held in the trainer's memory.
  virtual void ForgetHeld() = 0;
  /// Records that no other process has the files that are held.
  virtual void OrphanHeld() = 0;
  /// Gives the memory of all blocks back but those that are wanted and those of held files. The
  /// session is not locked; may take long.
  virtual void Release(std::vector<bool> wanted) = 0;
  /// Tells the trainer how a save has ended. The session is not locked.
  virtual void Report(std::uint64_t ticket, const Result<AsyncSaveReport>& report) = 0;
};

/// Carries out what session_machine.h decides. Threads: safe.
class AgentSession {
 public:
  /// Both must outlive it, and the host must end its threads' work first.
  /// `pid` is the trainer's process, for events; 0 where it is not known.
  AgentSession(SessionHost& host, Storage& storage, std::chrono::milliseconds peer_timeout,
               std::uint64_t first_ticket, int pid = 0);
  AgentSession(const AgentSession&) = delete;
  AgentSession& operator=(const AgentSession&) = delete;
  ~AgentSession() = default;

  /// Takes a save. The trainer revokes `lease` when it uses the memory again while the agent may
  /// still read it. Errors: FailedPrecondition for a ticket that is over or taken.
  Status Submit(std::uint64_t ticket, Submission save, std::shared_ptr<ValidityPage> lease);
  void Pass(std::uint64_t ticket) { Take(session_event::Passed{ticket}); }
  /// Gives up a deferred save.
  void Forget(std::uint64_t ticket) { Take(session_event::Forgotten{ticket}); }
  void Cancel(std::uint64_t ticket) { Take(session_event::Cancelled{ticket}); }

  /// Records that the trainer's connection has ended and its process has not.
  void TrainerIsSilent() { Take(session_event::ConnectionEnded{}); }
  /// Leaves a trainer that has been silent for peer_timeout. Returns true when it has.
  bool LeaveIfSilentForLong();
  /// Ends the wait for tickets that have not been submitted, and lets the agents find the deferred
  /// save to write. Gives unused memory back if no process uses it (`memory_is_ours`).
  void TrainerExited(bool memory_is_ours) { Take(session_event::ProcessEnded{memory_is_ours}); }
  /// Leaves a trainer that lives: gives up all saves that are not yet written, and does not touch
  /// the memory, which the trainer goes on to use.
  void Abandon() { Take(session_event::Abandoned{}); }

  [[nodiscard]] TrainerState trainer() const;
  [[nodiscard]] bool trainer_lives() const;
  /// Returns true when there is and will be no save to write and no memory to give back.
  [[nodiscard]] bool over() const;
  /// Returns the number of saves that have been submitted and have not ended; without deferred
  /// saves while the trainer lives.
  [[nodiscard]] std::size_t pending() const;
  [[nodiscard]] std::vector<AgentReport::File> Files() const;

 private:
  struct Job {
    Submission save;
    /// A storage with the trainer's settings and keys; null where it is the session's.
    std::shared_ptr<Storage> storage;
    std::shared_ptr<ValidityPage> lease;
    std::stop_source stop;
    TimePoint submitted = Now();
  };
  using JobPtr = std::shared_ptr<Job>;
  /// Deferred saves, newest first.
  using Kept = std::map<std::uint64_t, JobPtr, std::greater<>>;

  void Take(const SessionEvent& event);
  /// Makes the step and what follows from it. The lock is held.
  void TakeLocked(const SessionEvent& event);
  void Do(const SessionAction& action);
  /// Reports what a step has changed. The lock is held.
  void ReportChanges(const SessionState& before) const;
  void ReportSave(const Job& job, EventLevel level, std::string what) const;
  void Write(std::uint64_t ticket, const JobPtr& job);
  /// Writes and publishes a save. Where it fails and the trainer has exited, no other process
  /// reports it: this one reports it to ranks that come later, and leaves a note for `varve ls`.
  /// Errors: as WriteSubmission.
  Result<AsyncSaveReport> WriteJob(const Job& job, SubmittedFile* file);
  void Agree(const Kept& kept);
  [[nodiscard]] Storage& StorageOf(const Job& job) const {
    return job.storage ? *job.storage : storage_;
  }
  bool AreWanted(const Kept& kept);
  void ReleaseMemory();
  [[nodiscard]] std::optional<TimePoint> EndOfWaiting(bool deferred) const;

  SessionHost& host_;
  Storage& storage_;
  const int pid_;
  mutable std::mutex mutex_;  // Guards all members below.
  SessionState state_;
  std::map<std::uint64_t, JobPtr> jobs_;  // Those of state_.saves.
  /// The OccupantOf each checkpoint that was written, by path: the saves after it replace it.
  std::map<std::string, std::string> written_;
};

}  // namespace varve
