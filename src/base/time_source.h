/// The present, the waits and the threads of code that a simulation drives. Elsewhere these are the
/// steady clock, condition variables and std::thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

namespace varve {

using TimePoint = std::chrono::steady_clock::time_point;

/// A clock that does not go by itself, and threads of which one runs at a time.
class TimeSource {
 public:
  virtual ~TimeSource() = default;
  virtual TimePoint Now() = 0;
  virtual void SleepFor(std::chrono::nanoseconds time) = 0;
  /// Waits until `ready` returns true, or for the deadline. Also returns when the simulation lets
  /// the calling thread go: it then has no TimeSource any more.
  virtual void WaitUntil(TimePoint deadline, const std::function<bool()>& ready) = 0;
  /// Runs `body` on a thread with this TimeSource.
  virtual void Start(std::function<void()> body) = 0;
  /// Returns the next of its random numbers.
  virtual std::uint64_t Random() = 0;
  /// Returns the time of day, which processes need not agree about, and which may go back.
  virtual std::chrono::nanoseconds TimeOfDay() = 0;
};

/// Returns the present: that of the calling thread's TimeSource, else that of the steady clock.
TimePoint Now();

/// Returns a random number of the calling thread's TimeSource, where it has one.
std::optional<std::uint64_t> SimulatedRandom();

/// Returns a random number: of the calling thread's TimeSource, else the system's.
std::uint64_t RandomNumber();

/// Returns the time since 1970 in UTC: that of the calling thread's TimeSource, else the system's.
std::chrono::nanoseconds TimeOfDay();

/// Returns the same in whole seconds.
std::int64_t UnixSeconds();

/// Returns true where the calling thread has a TimeSource. It then starts no threads but by Thread:
/// a simulation decides which thread goes on, and knows only its own.
bool IsSimulated();

/// Waits, on the calling thread's TimeSource or really.
void SleepFor(std::chrono::nanoseconds time);

/// Waits on `changed` until `ready` returns true or `deadline` passes; returns what `ready` returns
/// then. `ready` is called with the lock held.
bool WaitUntil(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
               TimePoint deadline, const std::function<bool()>& ready);
/// Likewise, without a deadline.
void Wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
          const std::function<bool()>& ready);
/// Likewise, until `stop` at most; where it was requested, the caller looks at `stop`.
bool WaitUntil(std::condition_variable_any& changed, std::unique_lock<std::mutex>& lock,
               const std::stop_token& stop, TimePoint deadline, const std::function<bool()>& ready);
bool Wait(std::condition_variable_any& changed, std::unique_lock<std::mutex>& lock,
          const std::stop_token& stop, const std::function<bool()>& ready);

/// A thread that the destructor joins.
class Thread {
 public:
  Thread() = default;
  /// Throws std::system_error where the system starts no thread.
  explicit Thread(std::function<void()> body);
  Thread(Thread&&) noexcept = default;
  Thread& operator=(Thread&& other) noexcept;
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  ~Thread() { Join(); }

  /// Waits for the end of the thread, if there is one.
  void Join();

 private:
  struct Simulated;
  std::thread real_;
  std::shared_ptr<Simulated> simulated_;
};

/// Puts a TimeSource in the place of the steady clock for the calling thread, until it is destroyed
/// there.
class ScopedTimeSource {
 public:
  explicit ScopedTimeSource(TimeSource* source);
  ScopedTimeSource(const ScopedTimeSource&) = delete;
  ScopedTimeSource& operator=(const ScopedTimeSource&) = delete;
  ~ScopedTimeSource();

 private:
  TimeSource* const before_;
};

/// Takes the calling thread's TimeSource away. For the TimeSource that lets a thread go.
void LeaveTimeSource();

}  // namespace varve
