/// The present and the pauses of code that waits. A simulation puts its own in their place.
#pragma once

#include <chrono>

namespace varve {

using TimePoint = std::chrono::steady_clock::time_point;

/// A clock that does not go by itself.
class TimeSource {
 public:
  virtual ~TimeSource() = default;
  virtual TimePoint Now() = 0;
  virtual void SleepFor(std::chrono::nanoseconds time) = 0;
};

/// Returns the present: that of the calling thread's TimeSource, else that of the steady clock.
TimePoint Now();

/// Returns true where the calling thread has a TimeSource. It then starts no threads: a simulation
/// decides which thread goes on, and knows only its own.
bool IsSimulated();

/// Waits, on the calling thread's TimeSource or really.
void SleepFor(std::chrono::nanoseconds time);

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

}  // namespace varve
