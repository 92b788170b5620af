#include "interruptible.h"

#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "coordinate/channel/channel.h"
#include "varve/stop.h"

namespace varve::python {
namespace {

constexpr auto kLookForSignals = std::chrono::milliseconds(200);
constexpr auto kReport = std::chrono::seconds(5);

struct Ended {
  std::mutex mutex;
  std::condition_variable changed;
  bool yes = false;

  void Set() {
    const std::scoped_lock lock(mutex);
    yes = true;
    changed.notify_all();
  }
  /// Returns true when it has ended, after at most `time`.
  bool Wait(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, time, [&] { return yes; });
  }
};

/// Calls into Python. The thread that works must be joined whatever happens here.
void CallQuietly(const std::function<void()>& call, const char* what) {
  try {
    UntilTheInterpreterEnds(call);
  } catch (nb::python_error& error) {
    error.discard_as_unraisable(what);
  }
}

bool WaitWithoutGil(Ended& ended) {
  const GilReleased release;
  return ended.Wait(kLookForSignals);
}

}  // namespace

void RunOffMain(const std::function<void()>& work, const OffMain& how) {
  Ended ended;
  std::stop_source stop;
  std::thread thread;
  try {
    // The caller has the GIL, which a fork of Python's needs too: base/threads.h is not needed.
    thread = std::thread([&] {
      const ScopedStop scoped(stop.get_token());
      work();
      ended.Set();
    });
  } catch (const std::system_error&) {
    const GilReleased release;
    work();
    return;
  }
  std::optional<nb::python_error> raised;
  auto reported = std::chrono::steady_clock::now();
  while (!WaitWithoutGil(ended)) {
    if (!raised && PyErr_CheckSignals() != 0) {
      raised.emplace();
      stop.request_stop();
      CallQuietly(how.on_signal, "interrupt");
    }
    if (how.on_wait && std::chrono::steady_clock::now() - reported >= kReport) {
      reported = std::chrono::steady_clock::now();
      CallQuietly(how.on_wait, "report");
    }
  }
  {
    const GilReleased release;
    thread.join();
  }
  // Work that is short ends before the first look. Python would raise when this has returned, and
  // the caller would not get what it returns.
  if (!raised && PyErr_CheckSignals() != 0) {
    raised.emplace();
    CallQuietly(how.on_signal, "interrupt");
  }
  if (raised) {
    throw std::move(*raised);
  }
}

void WaitOffMain(std::function<void()> work) {
  auto ended = std::make_shared<Ended>();
  try {
    std::thread([ended, work]() mutable {
      work();
      {
        // This thread destroys the work's objects before the caller goes on. Objects of Python take
        // the GIL when they are destroyed; an interpreter that ends must not unwind them there.
        const GilHeld gil;
        work = nullptr;
      }
      ended->Set();
    }).detach();
  } catch (const std::system_error&) {
    const GilReleased release;
    work();
    return;
  }
  work = nullptr;  // The thread's copy is the one that ends with the wait.
  while (!WaitWithoutGil(*ended)) {
    if (PyErr_CheckSignals() != 0) {
      throw nb::python_error();
    }
  }
}

ProgressFunction Counting(ProgressCount* count, ProgressFunction next) {
  return [count, next = std::move(next)](std::uint64_t done, std::uint64_t total) {
    count->done.store(done, std::memory_order_relaxed);
    count->total.store(total, std::memory_order_relaxed);
    if (next) {
      next(done, total);
    }
  };
}

std::optional<std::string> Describe(const ProgressCount& count, const char* doing) {
  constexpr double kGigabyte = 1e9;
  const auto total = static_cast<double>(count.total.load(std::memory_order_relaxed));
  if (total == 0) {
    return std::nullopt;
  }
  const auto done = static_cast<double>(count.done.load(std::memory_order_relaxed));
  std::string text(96, '\0');
  const int size = std::snprintf(text.data(), text.size(), "still %s, %.2f of %.2f GB", doing,
                                 done / kGigabyte, total / kGigabyte);
  text.resize(static_cast<std::size_t>(size));
  return text;
}

void RunCollective(const std::function<void()>& work, const nb::object& coordinator,
                   const std::function<void()>& stop, const ProgressCount* count,
                   const char* doing) {
  const std::shared_ptr<Channel> channel = ChannelOf(coordinator);
  OffMain how;
  how.on_signal = [&] {
    stop();
    if (channel) {
      channel->Interrupt();
    }
  };
  if (count != nullptr && channel) {
    how.on_wait = [&channel, count, doing] {
      if (auto note = Describe(*count, doing)) {
        channel->Report(std::move(*note));
      }
    };
  }
  RunOffMain(work, how);
}

}  // namespace varve::python
