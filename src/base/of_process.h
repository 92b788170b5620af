/// Values of a process that a forked child does not inherit.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include <unistd.h>

namespace varve {

/// A value of which every process has its own: a forked child begins with a new one, since locks
/// inside its parent's may be held by threads that the child does not have. The child's copy of the
/// parent's value is destroyed together with its own. Threads: safe to call concurrently.
template <class T>
class OfProcess {
 public:
  constexpr OfProcess() = default;
  OfProcess(const OfProcess&) = delete;
  OfProcess& operator=(const OfProcess&) = delete;
  ~OfProcess() {
    for (Held* held = held_.load(); held != nullptr;) {
      delete std::exchange(held, held->before);
    }
  }

  T& Get() {
    Held* held = held_.load(std::memory_order_acquire);
    while (held == nullptr || held->process != ::getpid()) {
      auto fresh = std::make_unique<Held>();
      fresh->before = held;
      if (held_.compare_exchange_strong(held, fresh.get(), std::memory_order_acq_rel)) {
        held = fresh.release();
      }
    }
    return held->value;
  }

 private:
  struct Held {
    const ::pid_t process = ::getpid();
    T value;
    Held* before = nullptr;  ///< The parent's.
  };

  std::atomic<Held*> held_{nullptr};
};

}  // namespace varve
