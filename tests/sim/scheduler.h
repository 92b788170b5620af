/// Threads of which one runs at a time, in an order that a seed decides, on a clock that does not
/// go by itself.
///
/// An actor is a thread with a name. It runs until it comes to a point (Step, WaitUntil); there the
/// seed decides which actor goes on. The same seed and the same actors give the same order, as long
/// as the actors themselves do nothing by chance. A step takes a millisecond of the virtual clock;
/// when no actor can go on, the clock jumps to the first deadline.
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

  void Add(std::string name, std::function<void()> body);

  /// Runs all actors to their ends. Returns what went wrong: an actor that waits for ever, or more
  /// than `most_steps` steps. Then the actors go on in no order, so that their threads end:
  /// aborted() is true, and WaitUntil returns false at once.
  std::string Run(std::uint64_t most_steps);

  // ---- for the actor that is running ----

  /// Lets another actor go on, perhaps.
  void Step();
  /// Waits until `ready` returns true, or for the deadline: then it returns false. `ready` is asked
  /// on any actor's thread.
  bool WaitUntil(TimePoint deadline, const std::function<bool()>& ready);
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
    bool ended = false;
    std::function<bool()> ready;  ///< Null: it does not wait.
    TimePoint deadline = TimePoint::max();
  };

  void Live(std::size_t self);
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
  std::size_t alive_ = 0;
  TimePoint now_{std::chrono::hours(1)};
  std::uint64_t steps_ = 0;
  std::uint64_t most_steps_ = 0;
  std::string problem_;
};

}  // namespace varve::sim
