/// What an agent does for one trainer.
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
    std::uint64_t number = 0;  ///< Of the session.
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

  /// `lease` is revoked when the trainer uses the memory of the save again though we may still
  /// read from it. Errors: DataLoss; FailedPrecondition for a turn that is over or taken.
  Status Submit(std::uint64_t turn, std::string_view encoded, std::shared_ptr<ValidityPage> lease);
  void Pass(std::uint64_t turn);
  /// Gives up a save that was to be written at the end.
  void Forget(std::uint64_t turn);
  void Cancel(std::uint64_t turn);

  /// The trainer is gone: turns that have not been submitted never will be, memory that holds
  /// nothing is given back if it is certain that nobody uses it (`memory_is_ours`), and other ranks
  /// are waited for no longer than `timeout` if they have not been heard of.
  void TrainerIsGone(bool memory_is_ours);

  /// The trainer's connection has ended, its process has not.
  void TrainerIsSilent() { silent_ = true; }
  [[nodiscard]] bool silent() const { return silent_; }
  /// Said already, or about to be found out.
  [[nodiscard]] bool connection_has_ended() const;

  /// We leave a trainer that lives: what has not been written is given up, and its memory, which it
  /// goes on to use, is not touched.
  void Abandon();

  /// True when there is, and will be, nothing to write, and no memory to give back.
  [[nodiscard]] bool over();
  /// Saves that have been submitted and have not ended; those that wait for the trainer's end
  /// are not among them while it lives.
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
    bool gave_up = false;  // Only for who writes.
  };
  using JobPtr = std::shared_ptr<Job>;

  /// The save whose turn it is; null when there will be none.
  JobPtr Next(std::uint64_t* turn);
  void Work();
  void WriteAndEnd(std::uint64_t turn, Job& job);
  void WriteOne(std::uint64_t turn, Job& job);
  using Ticket = std::pair<std::uint64_t, JobPtr>;
  /// Saves that waited for the trainer's end, and are now the caller's to write. The lock is held.
  std::vector<Ticket> TakeThoseOfTheEnd();
  void StartEnders(std::vector<Ticket> turns);
  void Start(std::jthread* thread, const std::function<void()>& work);
  void AwaitEndOf(std::uint64_t newest, const Job& older);
  void IsWritten(std::uint64_t turn, bool deferred);
  void Tell(std::uint64_t turn, const Result<SaveReport>& report);
  [[nodiscard]] Clock::time_point PatientUntil(const Job& job) const;
  Status GiveUp(Job& job);
  [[nodiscard]] bool memory_is_ours();
  void ReleaseMemory();

  const Surroundings around_;
  const std::shared_ptr<PoolMemory> pool_;
  std::atomic<bool> silent_ = false;
  std::mutex mutex_;  // Guards all below but the thread.
  std::condition_variable changed_;
  std::map<std::uint64_t, JobPtr> jobs_;  // By turn; those not yet ended.
  std::set<std::uint64_t> passed_;
  std::uint64_t next_turn_;
  bool trainer_lives_ = true;
  bool memory_is_ours_ = false;  // Nobody else writes to it any more.
  bool over_ = false;
  bool releasing_ = false;
  bool abandoned_ = false;
  int enders_at_work_ = 0;
  std::optional<Clock::time_point> one_is_written_;  // Of those of the end.
  Clock::time_point alone_since_;
  // Last: they use all of the above.
  std::jthread releaser_;
  std::jthread worker_;
  std::jthread ender_;
  std::jthread older_ender_;
};

}  // namespace varve
