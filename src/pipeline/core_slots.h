/// A limit on how many threads do the processor's work at a time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace varve {

/// Slots that threads take and give back. Threads: safe. Must outlive its holders.
///
/// A mutex and a condition variable, and not std::counting_semaphore: libstdc++ 11 and 12 lose a
/// wake-up there when a release meets a waiter that is about to sleep (GCC bug 104928), and the
/// load would wait forever. It was seen once, under the thread sanitizer on a busy machine.
/// <latch>, <barrier> and std::atomic::wait stand on the same code; tests/tidy refuses all four.
class CoreSlots {
 public:
  explicit CoreSlots(std::size_t count) : free_(count) {}
  CoreSlots(const CoreSlots&) = delete;
  CoreSlots& operator=(const CoreSlots&) = delete;
  ~CoreSlots() = default;

  /// Waits for a slot, and gives it back when destroyed.
  class Holder {
   public:
    explicit Holder(CoreSlots* slots) : slots_(*slots) { slots_.Take(); }
    Holder(const Holder&) = delete;
    Holder& operator=(const Holder&) = delete;
    ~Holder() { slots_.Give(); }

   private:
    CoreSlots& slots_;
  };

 private:
  void Take() {
    std::unique_lock lock(mutex_);
    given_.wait(lock, [&] { return free_ > 0; });
    --free_;
  }

  void Give() {
    {
      const std::scoped_lock lock(mutex_);
      ++free_;
    }
    given_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable given_;
  std::size_t free_;  // Guarded by mutex_.
};

}  // namespace varve
