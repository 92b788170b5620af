/// The orderly end of a verb by a signal.
#pragma once

#include <atomic>
#include <csignal>
#include <stop_token>
#include <thread>

namespace varve::cli {

/// While it lives, the first SIGINT, SIGTERM or SIGHUP requests stop, and the second one ends the
/// process at once. A signal that is ignored (nohup, a shell's background job) stays ignored.
/// Requires: constructed before the threads that do the work, which inherit its signal mask.
class Interrupt {
 public:
  Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  ~Interrupt();

  [[nodiscard]] std::stop_token token() const { return stop_.get_token(); }
  /// Returns the number of the signal that has come, or 0.
  [[nodiscard]] int signal() const { return signal_; }

 private:
  void Wait();

  std::stop_source stop_;
  std::atomic<int> signal_{0};
  std::atomic<bool> done_{false};
  sigset_t waited_{};  ///< The signals that the thread waits for.
  sigset_t before_{};  ///< The mask before.
  std::thread thread_;
};

}  // namespace varve::cli
