// Long calls of the engine that Ctrl-C ends. Python sets a flag when a signal comes and runs its
// handler on the main thread, between two steps of Python code: an engine that waits there would
// keep the handler waiting too.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>

#include "bindings.h"

namespace varve::python {

/// The callbacks of a call that another thread makes; see RunOffMain.
struct OffMain {
  /// Called once, with the GIL, when a signal handler has raised: makes `work` end soon.
  std::function<void()> on_signal;
  /// Called with the GIL about every five seconds while `work` runs. May be null.
  std::function<void()> on_wait;
};

/// Runs `work` on a thread of its own, without the GIL, and returns when it has ended. This thread
/// looks for signals every 0.2 s. Whatever a signal handler raises, KeyboardInterrupt as a rule, is
/// raised here once `work` has ended: no thread touches the caller's memory any more.
/// Where no thread can start, `work` runs here, and signals wait for its end.
/// Requires: the GIL; `work` throws nothing.
void RunOffMain(const std::function<void()>& work, const OffMain& how);

/// Runs a call of the engine as RunOffMain does: `call` takes a stop token, which a signal
/// triggers, and returns a Result. Returns its value; raises what the signal handler raised, or the
/// exception for its error, whose path is `about` unless the error has one.
template <class Call>
auto Stoppable(const std::string& about, const Call& call) {
  std::stop_source stop;
  decltype(call(stop.get_token())) result = Internal("not run");
  std::exception_ptr thrown;
  const auto work = [&] {
    try {
      result = call(stop.get_token());
    } catch (...) {
      thrown = std::current_exception();
    }
  };
  RunOffMain(work, {.on_signal = [&] { stop.request_stop(); }, .on_wait = {}});
  if (thrown) {
    std::rethrow_exception(thrown);
  }
  return ValueOrRaise(std::move(result).With({.path = about}));
}

/// Does the same as RunOffMain for a wait that has no memory of the caller: on a signal the wait
/// goes on by itself and what the handler raised is raised at once. `work` owns all that it uses.
void WaitOffMain(std::function<void()> work);

/// Bytes done and in all, as last reported to a progress function. Threads: safe.
struct ProgressCount {
  std::atomic<std::uint64_t> done{0};
  std::atomic<std::uint64_t> total{0};
};

/// Returns a progress function that counts, and calls `next` unless that is null.
ProgressFunction Counting(ProgressCount* count, ProgressFunction next);

/// Returns "still writing, 1.2 of 3.4 GB", for the ranks that wait; nothing where there is no total
/// yet.
std::optional<std::string> Describe(const ProgressCount& count, const char* doing);

/// Runs a collective call. On a signal stops it, and the rank's waits for others; reports this
/// rank's progress to the others every few seconds, where `coordinator` is a Channel.
void RunCollective(const std::function<void()>& work, const nb::object& coordinator,
                   const std::function<void()>& stop, const ProgressCount* count,
                   const char* doing);

}  // namespace varve::python
