/// A thread that does one thing after the other.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace varve {

/// Threads: safe. Destroying it waits for everything that was asked for.
class SerialThread {
 public:
  SerialThread() : thread_([this] { Work(); }) {}
  SerialThread(const SerialThread&) = delete;
  SerialThread& operator=(const SerialThread&) = delete;
  ~SerialThread() {
    const std::scoped_lock lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }

  void Run(std::function<void()> work) {
    const std::scoped_lock lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_all();
  }

 private:
  void Work() {
    while (true) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !queue_.empty() || done_; });
        if (queue_.empty()) {
          return;
        }
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      work();
    }
  }

  std::mutex mutex_;  // Guards all below but the thread.
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool done_ = false;
  std::jthread thread_;  // Last: it is joined before the others go.
};

}  // namespace varve
