#include "base/time_source.h"

#include <random>
#include <utility>

#include "base/threads.h"

namespace varve {
namespace {

thread_local TimeSource* source_of_thread = nullptr;

/// Lets the calling thread's TimeSource wait for `ready`, which needs the lock. Returns false where
/// it has none, or is let go.
bool WaitSimulated(std::unique_lock<std::mutex>& lock, TimePoint deadline,
                   const std::function<bool()>& ready) {
  if (source_of_thread == nullptr) {
    return false;
  }
  lock.unlock();
  source_of_thread->WaitUntil(deadline, [&] {
    const std::scoped_lock locked(*lock.mutex());
    return ready();
  });
  lock.lock();
  return source_of_thread != nullptr;
}

}  // namespace

TimePoint Now() {
  return source_of_thread != nullptr ? source_of_thread->Now() : std::chrono::steady_clock::now();
}

std::optional<std::uint64_t> SimulatedRandom() {
  return source_of_thread != nullptr ? std::optional(source_of_thread->Random()) : std::nullopt;
}

std::chrono::nanoseconds TimeOfDay() {
  return source_of_thread != nullptr
             ? source_of_thread->TimeOfDay()
             : std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch());
}

std::uint64_t RandomNumber() {
  if (const auto simulated = SimulatedRandom()) {
    return *simulated;
  }
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

std::int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(TimeOfDay()).count();
}

bool IsSimulated() { return source_of_thread != nullptr; }

void SleepFor(std::chrono::nanoseconds time) {
  if (source_of_thread != nullptr) {
    source_of_thread->SleepFor(time);
  } else {
    std::this_thread::sleep_for(time);
  }
}

bool WaitUntil(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
               TimePoint deadline, const std::function<bool()>& ready) {
  return WaitSimulated(lock, deadline, ready) ? ready() : changed.wait_until(lock, deadline, ready);
}

void Wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
          const std::function<bool()>& ready) {
  if (!WaitSimulated(lock, TimePoint::max(), ready)) {
    changed.wait(lock, ready);
  }
}

bool WaitUntil(std::condition_variable_any& changed, std::unique_lock<std::mutex>& lock,
               const std::stop_token& stop, TimePoint deadline,
               const std::function<bool()>& ready) {
  const auto ends = [&] { return stop.stop_requested() || ready(); };
  return WaitSimulated(lock, deadline, ends) ? ready()
                                             : changed.wait_until(lock, stop, deadline, ready);
}

bool Wait(std::condition_variable_any& changed, std::unique_lock<std::mutex>& lock,
          const std::stop_token& stop, const std::function<bool()>& ready) {
  const auto ends = [&] { return stop.stop_requested() || ready(); };
  return WaitSimulated(lock, TimePoint::max(), ends) ? ready() : changed.wait(lock, stop, ready);
}

struct Thread::Simulated {
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
};

Thread::Thread(std::function<void()> body) {
  if (source_of_thread == nullptr) {
    real_ = StartThread<std::thread>(std::move(body));
    return;
  }
  simulated_ = std::make_shared<Simulated>();
  source_of_thread->Start([body = std::move(body), simulated = simulated_] {
    body();
    const std::scoped_lock lock(simulated->mutex);
    simulated->ended = true;
    simulated->changed.notify_all();
  });
}

Thread& Thread::operator=(Thread&& other) noexcept {
  Join();
  real_ = std::move(other.real_);
  simulated_ = std::move(other.simulated_);
  return *this;
}

void Thread::Join() {
  if (real_.joinable()) {
    real_.join();
  }
  if (const auto simulated = std::move(simulated_)) {
    std::unique_lock lock(simulated->mutex);
    Wait(simulated->changed, lock, [&] { return simulated->ended; });
  }
}

ScopedTimeSource::ScopedTimeSource(TimeSource* source)
    : before_(std::exchange(source_of_thread, source)) {}

ScopedTimeSource::~ScopedTimeSource() { source_of_thread = before_; }

void LeaveTimeSource() { source_of_thread = nullptr; }

}  // namespace varve
