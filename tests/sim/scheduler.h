/// Threads of which one runs at a time, in an order that a seed decides, on a clock that does not
/// go by itself.
///
/// An actor is a thread with a name. It runs until it comes to a point (Step, WaitUntil); there the
/// seed decides which actor goes on. The same seed and the same actors give the same order, as long
/// as the actors themselves do nothing by chance. A step takes a millisecond of the virtual clock;
/// when no actor can go on, the clock jumps to the first deadline.
///
/// The threads that an actor starts are actors of its process. A process that is killed does not go
/// on, wherever its actors are; one that is stopped does not until a time. No actor may hold a lock
/// at a point that another actor takes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/time_source.h"
#include "support/random.h"

namespace varve::sim {

class Scheduler final : public TimeSource {
 public:
  /// `random` decides. It outlives this, and nothing else uses it while actors run but the actor
  /// that is running.
  explicit Scheduler(test::Random* random);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  ~Scheduler() override = default;

  /// Adds an actor of a process of its own, also while others run. Returns the process.
  std::size_t Add(std::string name, std::function<void()> body);

  /// Runs all actors to their ends. Returns what went wrong: an actor that waits for ever, or more
  /// than `most_steps` steps. Then the actors go on in no order, so that their threads end:
  /// aborted() is true, and WaitFor returns false at once. Actors of killed processes go on when
  /// all others have ended, without this clock: what they use must know that they are dead.
  std::string Run(std::uint64_t most_steps);
  /// For actors that wait on locks of their own: when something goes wrong they stay where they
  /// are, and Run returns. This, and all that they use, must then never be destroyed.
  void StandWhenAborted() { stands_when_aborted_ = true; }

  // ---- for the actor that is running ----

  /// Lets another actor go on, perhaps.
  void Step();
  /// Waits until `ready` returns true, or for the deadline: then it returns false. `ready` is asked
  /// on any actor's thread.
  bool WaitFor(TimePoint deadline, const std::function<bool()>& ready);
  void WaitUntil(TimePoint deadline, const std::function<bool()>& ready) override {
    (void)WaitFor(deadline, ready);
  }
  /// Starts an actor of the running one's process.
  void Start(std::function<void()> body) override;
  std::uint64_t Random() override { return random_.Below(~std::uint64_t{0}); }
  std::chrono::nanoseconds TimeOfDay() override {
    return kZero + now_.time_since_epoch() + processes_[process_of_running()].clock_is_ahead;
  }
  /// Sets the clock of the running actor's process, by which it says when it did something.
  void SetClockAhead(std::chrono::nanoseconds by) {
    processes_[process_of_running()].clock_is_ahead = by;
  }
  /// Kills a process. If it is the running actor's, that goes on when all others have ended.
  void Kill(std::size_t process);
  /// Lets a process stand still until then.
  void Stop(std::size_t process, TimePoint until);
  [[nodiscard]] std::size_t process_of_running() const { return actors_[running_]->process; }
  TimePoint Now() override { return now_; }
  void SleepFor(std::chrono::nanoseconds time) override;

  [[nodiscard]] bool aborted() const { return !problem_.empty(); }
  [[nodiscard]] std::uint64_t steps() const { return steps_; }
  [[nodiscard]] const std::string& name_of_running() const;

 private:
  struct Actor {
    std::string name;
    std::function<void()> body;
    std::condition_variable turn;
    std::thread thread;
    std::size_t process = 0;
    bool ended = false;
    std::function<bool()> ready;  ///< Null: it does not wait.
    TimePoint deadline = TimePoint::max();
  };

  struct Standing {
    bool killed = false;
    TimePoint stopped_until = TimePoint::min();
    std::chrono::nanoseconds clock_is_ahead{0};  ///< May be negative.
  };

  /// Time of day when the clock of this shows zero.
  static constexpr std::chrono::nanoseconds kZero = std::chrono::hours(24 * 365 * 50);

  std::size_t AddTo(std::size_t process, std::string name, std::function<void()> body);
  void Live(std::size_t self);
  /// Waits until it is the actor's turn. Returns false when it is let go instead.
  bool AwaitTurn(std::unique_lock<std::mutex>* lock, std::size_t self);
  /// Gives the turn to an actor that can go on and returns when it is this one's again. The lock is
  /// held.
  void Yield(std::unique_lock<std::mutex>* lock, std::size_t self);
  /// Returns the actor that goes on; the number of actors when there is none.
  std::size_t Choose();
  void Abort(std::string problem);

  test::Random& random_;
  std::uint64_t switch_one_in_;
  std::mutex mutex_;  // Hands the turn on; what follows is the running actor's.
  std::condition_variable all_ended_;
  std::vector<std::unique_ptr<Actor>> actors_;
  std::size_t running_ = 0;
  std::vector<Standing> processes_;
  bool runs_ = false;
  bool stands_when_aborted_ = false;
  bool let_go_ = false;  ///< All that were not killed have ended.
  std::size_t alive_ = 0;
  TimePoint now_{std::chrono::hours(1)};
  std::uint64_t steps_ = 0;
  std::uint64_t most_steps_ = 0;
  std::string problem_;
};

}  // namespace varve::sim
