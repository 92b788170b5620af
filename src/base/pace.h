/// Spreads bytes over time, so that a rate is kept on average. Pure: the caller has the clock and
/// waits.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/time_source.h"

namespace varve {

/// Threads: none of its own; the caller guards it.
class Pace {
 public:
  Pace() = default;
  /// `bytes_per_second` 0: no limit.
  explicit Pace(std::uint64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  [[nodiscard]] bool has_limit() const { return bytes_per_second_ > 0; }

  /// Returns when a transfer of `bytes` may begin: when the time of those before it has passed.
  TimePoint Reserve(std::uint64_t bytes, TimePoint now) {
    const TimePoint start = std::max(next_start_, now);
    if (has_limit()) {
      const std::chrono::duration<double> takes(static_cast<double>(bytes) /
                                                static_cast<double>(bytes_per_second_));
      next_start_ = start + std::chrono::duration_cast<TimePoint::duration>(takes);
    }
    return start;
  }

 private:
  std::uint64_t bytes_per_second_ = 0;
  TimePoint next_start_ = TimePoint::min();
};

}  // namespace varve
