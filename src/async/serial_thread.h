/// A thread that runs tasks one after the other.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <utility>

#include "base/time_source.h"

namespace varve {

/// Threads: safe. The destructor waits for all tasks.
class SerialThread {
 public:
  /// Work with its place in a queue. A caller makes it before it commits itself to the work: Run
  /// then needs no memory. The work must not throw.
  class Task {
   public:
    Task() = default;
    explicit Task(std::function<void()> work) { place_.push_back(std::move(work)); }

   private:
    friend class SerialThread;
    std::list<std::function<void()>> place_;
  };

  /// Throws std::system_error where the system starts no thread.
  SerialThread() : thread_([this] { Work(); }) {}
  SerialThread(const SerialThread&) = delete;
  SerialThread& operator=(const SerialThread&) = delete;
  ~SerialThread() {
    const std::scoped_lock lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }

  void Run(Task task) noexcept {
    const std::scoped_lock lock(mutex_);
    queue_.splice(queue_.end(), task.place_);
    changed_.notify_all();
  }

 private:
  void Work() {
    while (true) {
      Task task;
      {
        std::unique_lock lock(mutex_);
        Wait(changed_, lock, [&] { return !queue_.empty() || done_; });
        if (queue_.empty()) {
          return;
        }
        task.place_.splice(task.place_.end(), queue_, queue_.begin());
      }
      task.place_.front()();
    }
  }

  std::mutex mutex_;  // Guards all members below but the thread.
  std::condition_variable changed_;
  std::list<std::function<void()>> queue_;
  bool done_ = false;
  Thread thread_;  // Last: it is joined before the others are destroyed.
};

}  // namespace varve
