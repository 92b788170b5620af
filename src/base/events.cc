// Events wait in a short queue, from which one thread gives them to the caller's function. So a
// module may report while it holds its locks, and a function that takes a lock of its own (Python's
// GIL) cannot stop the engine.

#include "base/events.h"

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <ctime>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <unistd.h>

#include "base/guarded.h"
#include "base/threads.h"
#include "base/time_source.h"
#include "base/trace.h"

namespace varve {
namespace {

constexpr std::size_t kMostWaiting = 4096;

/// The function, its queue and its thread.
class Taker {
 public:
  explicit Taker(EventFunction function) : function_(std::move(function)) {}
  Taker(const Taker&) = delete;
  Taker& operator=(const Taker&) = delete;
  ~Taker() {
    {
      const std::scoped_lock lock(mutex_);
      ends_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  void Add(Event event) {
    const std::scoped_lock lock(mutex_);
    const Status added = Guarded([&] {
      if (queue_.size() >= kMostWaiting) {
        return OutOfMemory();
      }
      if (!thread_.joinable()) {  // The first event: who only loads this library has no thread.
        thread_ = StartThread<std::thread>([this] { Run(); });
      }
      queue_.push_back(std::move(event));
      return Status::Ok();
    });
    dropped_ += added.ok() ? 0 : 1;
    changed_.notify_all();
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ends_ || !queue_.empty(); });
      if (queue_.empty()) {
        return;
      }
      const Event event = std::move(queue_.front());
      queue_.pop_front();
      const std::size_t dropped = queue_.empty() ? std::exchange(dropped_, 0) : 0;
      lock.unlock();
      (void)Guarded([&] {
        function_(event);
        if (dropped > 0) {
          function_({.level = EventLevel::kWarning,
                     .message = "events came too fast: " + std::to_string(dropped) + " are lost",
                     .time = std::chrono::system_clock::now()});
        }
      });
      lock.lock();
    }
  }

  const EventFunction function_;
  std::mutex mutex_;  // Guards all below.
  std::condition_variable changed_;
  std::deque<Event> queue_;
  std::size_t dropped_ = 0;
  bool ends_ = false;
  std::thread thread_;
};

/// Of one process. Never destroyed: threads may report while the process exits.
struct Global {
  const pid_t process = ::getpid();
  std::atomic<bool> taken{false};
  std::mutex mutex;  // Guards `taker`; held to report, so that no taker goes meanwhile.
  std::unique_ptr<Taker> taker;
};

std::atomic<Global*> global{nullptr};

/// Returns this process's; null where there is none yet. A forked child leaves that of its parent
/// as it is: its lock may be held, and its thread is not there.
Global* OfThisProcess() {
  Global* const found = global.load();
  return found != nullptr && found->process == ::getpid() ? found : nullptr;
}

}  // namespace

std::string_view EventLevelName(EventLevel level) {
  constexpr std::array<std::string_view, 4> kNames{"DEBUG", "INFO", "WARNING", "ERROR"};
  return kNames.at(static_cast<std::size_t>(level));
}

std::string ToLine(const Event& event) {
  using std::chrono::system_clock;
  const std::time_t seconds = system_clock::to_time_t(event.time);
  const auto whole = std::chrono::floor<std::chrono::seconds>(event.time);
  const auto millis = std::chrono::floor<std::chrono::milliseconds>(event.time - whole).count();
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  std::array<char, 32> date{};
  std::array<char, 48> time{};
  std::strftime(date.data(), date.size(), "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(time.data(), time.size(), "%s.%03dZ", date.data(), static_cast<int>(millis));
  std::string line = std::string(time.data()) + ' ' + std::string(EventLevelName(event.level));
  if (event.rank >= 0) {
    line += " rank " + std::to_string(event.rank);
  }
  line += ' ' + event.message;
  for (const auto& [name, value] : event.fields) {
    line.append(1, ' ').append(name).append(1, '=').append(value);
  }
  for (char& c : line) {
    c = static_cast<unsigned char>(c) < ' ' || c == '\x7f' ? ' ' : c;
  }
  return line;
}

void SetEventFunction(EventFunction function) {
  (void)IsTraced();  // Python calls this first: VARVE_TRACE is relative to the directory of now.
  Global* mine = OfThisProcess();
  if (mine == nullptr) {
    if (!function) {
      return;
    }
    mine = new Global;
    global = mine;
  }
  auto next = function ? std::make_unique<Taker>(std::move(function)) : nullptr;
  {
    const std::scoped_lock lock(mine->mutex);
    mine->taken = next != nullptr;
    mine->taker.swap(next);
  }
  next.reset();  // Waits until it is not called any more. Others report meanwhile.
}

bool EventsAreTaken() {
  const Global* const mine = OfThisProcess();
  return mine != nullptr && mine->taken.load(std::memory_order_relaxed) && !IsSimulated();
}

void ReportEvent(Event event) noexcept {
  if (!EventsAreTaken()) {
    return;
  }
  (void)Guarded([&] {
    event.time = std::chrono::system_clock::now();
    Global& mine = *OfThisProcess();
    const std::scoped_lock lock(mine.mutex);
    if (mine.taker != nullptr) {
      mine.taker->Add(std::move(event));
    }
  });
}

}  // namespace varve
