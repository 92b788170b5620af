/// The phases of a save or load: how long each took, for the report and, where VARVE_TRACE names a
/// file, as slices in a trace of all threads that Perfetto opens.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/time_source.h"
#include "varve/events.h"

namespace varve {

/// Returns true where VARVE_TRACE is set. It is looked up once.
bool IsTraced();

/// The end of a save or load in the trace: names this process as a rank, unless it has a name, and
/// writes what has been recorded to the file.
void FlushTraceOf(int rank);
/// Likewise for the agent.
void FlushTraceOfAgent();

/// A stretch of time on the calling thread, in the trace alone. Costs one comparison when off.
class Slice {
 public:
  /// `name` must outlive this; `bytes` is what it is about, if any.
  explicit Slice(const char* name, std::uint64_t bytes = 0)
      : name_(IsTraced() ? name : nullptr), bytes_(bytes) {
    if (name_ != nullptr) {
      start_ = std::chrono::steady_clock::now();
    }
  }
  Slice(const Slice&) = delete;
  Slice& operator=(const Slice&) = delete;
  ~Slice() {
    if (name_ != nullptr) {
      Record();
    }
  }
  void SetBytes(std::uint64_t bytes) { bytes_ = bytes; }

 private:
  void Record() noexcept;

  const char* name_;
  std::uint64_t bytes_;
  std::chrono::steady_clock::time_point start_;
};

/// Adds the time until its end to a phase of a report, unless that is null, and to the trace.
/// Phases are in the order in which they began; one that is repeated adds up. Threads: one at a
/// time for each list.
class PhaseTimer {
 public:
  PhaseTimer(std::vector<Phase>* phases, const char* name, std::uint64_t bytes = 0);
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;
  ~PhaseTimer();
  void SetBytes(std::uint64_t bytes);

 private:
  std::vector<Phase>* const phases_;
  const char* const name_;
  std::uint64_t bytes_;
  const TimePoint start_ = Now();
  Slice slice_;
};

/// Adds to the phase of that name, or begins it. Without memory for it the phase is left out.
void AddPhase(std::vector<Phase>* phases, Phase phase);

}  // namespace varve
