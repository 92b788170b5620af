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

#include "agent/held_files.h"
#include "agent/link.h"
#include "agent/session_machine.h"
#include "agent/shared_memory.h"
#include "async/serial_thread.h"
#include "async/submission.h"
#include "base/time_source.h"
#include "varve/agent.h"
#include "varve/events.h"
#include "varve/storage.h"

namespace varve {

/// Carries out what session_machine.h decides, with threads of its own. Threads: safe.
class AgentSession {
 public:
  struct Surroundings {
    std::uint64_t number = 0;  ///< Number of the session.
    std::uint64_t first_ticket = 0;
    int pid = 0;  ///< The trainer's process, for events; 0 where it is not known.
    std::shared_ptr<AgentLink> trainer;
    std::shared_ptr<PoolMemory> memory;  ///< The trainer's.
    HeldFiles& held;
    Storage& storage;                           ///< Where saves are written.
    std::chrono::milliseconds peer_timeout{0};  ///< AgentServerOptions::peer_timeout.
    std::function<void()> changed;              ///< Called when work of a thread has ended.
  };
  /// Throws std::system_error where the system starts no threads.
  explicit AgentSession(Surroundings surroundings);
  AgentSession(const AgentSession&) = delete;
  AgentSession& operator=(const AgentSession&) = delete;
  /// Abandons a session that is not over, and waits for the saves that are being written.
  ~AgentSession();

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

  [[nodiscard]] const PoolMemory& memory() const { return *around_.memory; }
  [[nodiscard]] std::uint64_t number() const { return around_.number; }
  /// Returns true when the connection has ended, whether or not the agent has handled that yet.
  [[nodiscard]] bool connection_has_ended() const;
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
  /// Lets a thread do the work, after the work that it has been given before.
  void Run(SerialThread& thread, std::function<void()> work);
  /// Reports what a step has changed. The lock is held.
  void ReportChanges(const SessionState& before) const noexcept;
  [[nodiscard]] Event EventOf(const Job& job, EventLevel level, const std::string& what) const;
  [[nodiscard]] TrainerState trainer() const;
  void Write(std::uint64_t ticket, const JobPtr& job);
  /// Writes and publishes a save. Where it fails and the trainer has exited, no other process
  /// reports it: this one reports it to ranks that come later, and leaves a note for `varve ls`.
  /// Errors: as WriteSubmission.
  Result<AsyncSaveReport> WriteJob(const Job& job, SubmittedFile* file);
  /// Keeps a written file in memory for those who load it. The lock is held.
  void Hold(std::uint64_t ticket, const Job& job, const SubmittedFile& file);
  /// Tells the trainer how a save has ended.
  void Report(std::uint64_t ticket, const Result<AsyncSaveReport>& report) const;
  void Agree(const Kept& kept);
  [[nodiscard]] Storage& StorageOf(const Job& job) const {
    return job.storage ? *job.storage : around_.storage;
  }
  bool AreWanted(const Kept& kept);
  void ReleaseMemory();
  [[nodiscard]] std::optional<TimePoint> EndOfWaiting(bool deferred) const;

  const Surroundings around_;
  mutable std::mutex mutex_;  // Guards the three members below.
  SessionState state_;
  std::map<std::uint64_t, JobPtr> jobs_;  // Those of state_.saves.
  /// The OccupantOf each checkpoint that was written, by path: the saves after it replace it.
  std::map<std::string, std::string> written_;
  // Last: their work uses all of the above, and ends first.
  SerialThread submitted_thread_;
  SerialThread deferred_thread_;
  SerialThread memory_thread_;
};

}  // namespace varve
