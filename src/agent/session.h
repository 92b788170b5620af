/// The saves that an agent writes for one trainer.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/connection.h"
#include "agent/held_files.h"
#include "agent/shared_memory.h"
#include "async/submission.h"
#include "varve/agent.h"

namespace varve {

/// The saves of one trainer (one stager of it), written one after the other in the order of their
/// turns by a thread of their own, whether the trainer lives or not. Threads: safe.
class AgentSession {
 public:
  struct Surroundings {
    std::uint64_t number = 0;  ///< Number of the session.
    std::shared_ptr<AgentConnection> trainer;
    HeldFiles* held = nullptr;
    std::chrono::milliseconds peer_timeout{0};  ///< AgentServerOptions::peer_timeout.
    std::function<void()> changed;              ///< Called when a save has ended.
  };
  AgentSession(Surroundings surroundings, std::shared_ptr<PoolMemory> pool,
               std::uint64_t first_turn);
  AgentSession(const AgentSession&) = delete;
  AgentSession& operator=(const AgentSession&) = delete;
  /// Waits for the save that is being written.
  ~AgentSession();

  /// Takes a save. The trainer revokes `lease` when it uses the memory again while the agent may
  /// still read it. Errors: DataLoss; FailedPrecondition for a turn that is over or taken.
  Status Submit(std::uint64_t turn, std::string_view encoded, std::shared_ptr<ValidityPage> lease);
  void Pass(std::uint64_t turn);
  /// Gives up a deferred save.
  void Forget(std::uint64_t turn);
  void Cancel(std::uint64_t turn);

  /// Ends the wait for turns that have not been submitted, and starts to write deferred saves.
  /// Gives unused memory back if no process uses it (`memory_is_ours`). From now on the agent waits
  /// no longer than peer_timeout for ranks that have sent nothing.
  void TrainerExited(bool memory_is_ours);

  /// Records that the trainer's connection has ended and its process has not.
  void TrainerIsSilent() { silent_ = true; }
  [[nodiscard]] bool silent() const { return silent_; }
  /// Returns true when the connection has ended, whether or not the agent has handled that yet.
  [[nodiscard]] bool connection_has_ended() const;

  /// Leaves a trainer that lives: gives up all saves that are not yet written, and does not touch
  /// the memory, which the trainer goes on to use.
  void Abandon();

  /// Returns true when there is and will be no save to write and no memory to give back.
  [[nodiscard]] bool over();
  /// Returns the number of saves that have been submitted and have not ended; without deferred
  /// saves while the trainer lives.
  [[nodiscard]] std::size_t pending();

  [[nodiscard]] std::vector<AgentReport::File> Files();
  [[nodiscard]] std::uint64_t number() const { return around_.number; }
  [[nodiscard]] const PoolMemory& memory() const { return *pool_; }
  [[nodiscard]] bool trainer_lives();

 private:
  using Clock = std::chrono::steady_clock;
  struct Job {
    Submission save;
    std::shared_ptr<ValidityPage> lease;
    std::stop_source stop;
    bool writing = false;
    bool gave_up = false;  // Used by the writing thread only.
  };
  using JobPtr = std::shared_ptr<Job>;

  /// Waits for the save whose turn it is and returns it; null when there will be none.
  JobPtr Next(std::uint64_t* turn);
  void Work();
  void WriteAndEnd(std::uint64_t turn, Job& job);
  void WriteOne(std::uint64_t turn, Job& job);
  using Ticket = std::pair<std::uint64_t, JobPtr>;
  /// Returns the deferred saves, which the caller then writes. The lock is held.
  std::vector<Ticket> TakeDeferredSaves();
  void StartEnders(std::vector<Ticket> turns);
  void Start(std::jthread* thread, const std::function<void()>& work);
  void AwaitEndOf(std::uint64_t newest, const Job& older);
  void IsWritten(std::uint64_t turn, bool deferred);
  void SendReport(std::uint64_t turn, const Result<AsyncSaveReport>& report);
  [[nodiscard]] Clock::time_point GiveUpTime(const Job& job) const;
  Status GiveUp(Job& job);
  [[nodiscard]] bool memory_is_ours();
  void ReleaseMemory();

  const Surroundings around_;
  const std::shared_ptr<PoolMemory> pool_;
  std::atomic<bool> silent_ = false;
  std::mutex mutex_;  // Guards all members below but the threads.
  std::condition_variable changed_;
  std::map<std::uint64_t, JobPtr> jobs_;  // Saves that have not ended, by turn.
  std::set<std::uint64_t> passed_;
  std::uint64_t next_turn_;
  bool trainer_lives_ = true;
  bool memory_is_ours_ = false;  // No other process writes to it.
  bool over_ = false;
  bool releasing_ = false;
  bool abandoned_ = false;
  int enders_at_work_ = 0;
  std::optional<Clock::time_point> one_is_written_;  // When a deferred save was written.
  Clock::time_point alone_since_;
  // Last: they use all of the above.
  std::jthread releaser_;
  std::jthread worker_;
  std::jthread ender_;
  std::jthread older_ender_;
};

}  // namespace varve
