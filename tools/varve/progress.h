/// The progress of a long verb, on standard error.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "varve/options.h"

namespace varve::cli {

/// On a terminal a bar that is redrawn in place and removed when the work is done; elsewhere a line
/// now and then, so that a log of a long run shows life and that of a short one stays clean. Both
/// show the time that is left at the present speed (ETA).
/// Threads: the function may be called from any thread until Finish.
class Progress {
 public:
  /// `verb` begins the line. With `quiet` nothing is ever shown.
  Progress(std::string verb, bool quiet);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { Finish(); }

  /// Returns the function for VerifyOptions and the like; empty when quiet. It must not outlive
  /// this object.
  ProgressFunction function();

  /// Removes the bar. Must be called before anything else is printed.
  void Finish();

  /// Returns the seconds since construction.
  [[nodiscard]] double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;

  void Show(std::uint64_t done, std::uint64_t total);

  const std::string verb_;
  const bool quiet_;
  const bool terminal_;
  const Clock::time_point start_;
  std::mutex mutex_;  // Guards what follows.
  Clock::time_point next_;
  bool drawn_ = false;
};

/// Returns "1.2 GiB in 0.51 s (2.4 GiB/s)".
std::string BytesAndSpeed(std::uint64_t bytes, double seconds);

}  // namespace varve::cli
