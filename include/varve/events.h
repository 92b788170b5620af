/// Events, and what reports have in common. Saves in the background, the agent and retries report
/// events; every save and load reports its phases.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace varve {

/// A part of a save or load. Reports have them in the order in which they began.
struct Phase {
  std::string name;
  double seconds = 0;       ///< On this rank.
  std::uint64_t bytes = 0;  ///< That it copied, wrote or read; 0 where it is not about bytes.
  /// Filled on the coordinator of a save by several ranks, where a phase is no wait for others: the
  /// rank that took longest, and how long.
  std::optional<std::uint32_t> slowest_rank{};
  double slowest_seconds = 0;
  friend bool operator==(const Phase&, const Phase&) = default;
};

/// The staging memory of a stager, and what of it is registered with the CUDA driver: copies from
/// devices go straight there.
struct StagingMemory {
  int registrations = 0;               ///< Made so far.
  std::uint64_t registered_bytes = 0;  ///< Now.
  double register_seconds = 0;         ///< That all of them took, beside other work.
  /// The NUMA node of the device whose tensors were saved first, which the memory is taken from;
  /// nothing where the system does not say, or has one node.
  std::optional<int> numa_node{};
  std::string refused{};  ///< The driver's reason, where it refused to register some.
};

/// Tensors on devices that the caller copies by way of host memory of its own, which the engine
/// does not see; reports repeat it.
struct CopiedAhead {
  std::uint64_t tensors = 0;
  std::string problem{};  ///< Why the engine could not copy from or to any device; empty: it could.
};

enum class EventLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };

/// Returns "DEBUG", "INFO", "WARNING" or "ERROR".
std::string_view EventLevelName(EventLevel level);

/// One thing that happened.
struct Event {
  EventLevel level = EventLevel::kInfo;
  int rank = -1;        ///< The rank it happened to; -1 where it is none's.
  std::string message;  ///< One line, which begins with what was being done: "save PATH: ...".
  /// Names and values, such as {"turn", "7"}.
  std::vector<std::pair<std::string, std::string>> fields{};
  std::chrono::system_clock::time_point time{};  ///< When; set by the engine.
};

/// Returns the event as a line of a log: time (UTC), level, rank, message, fields. Spaces stand for
/// control characters.
std::string ToLine(const Event& event);

using EventFunction = std::function<void(const Event&)>;

/// Sets the function that takes all events of this process from now on; empty: they are dropped,
/// which costs nothing. One thread of the engine calls it, with one event after the other. Returns
/// when the function before it has taken the events that were waiting and is not called any more;
/// must not be called from within an EventFunction. Where events come faster than the function
/// takes them, some are dropped, and a warning says how many. A child that was forked has no
/// function until it sets one.
void SetEventFunction(EventFunction function);

}  // namespace varve
