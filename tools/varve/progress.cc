#include "progress.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include <sys/ioctl.h>
#include <unistd.h>

#include "text.h"

namespace varve::cli {
namespace {

// Fast enough to look alive, slow enough to cost nothing.
constexpr auto kBarInterval = std::chrono::milliseconds(100);
constexpr auto kLineInterval = std::chrono::seconds(5);
constexpr std::size_t kBarWidth = 30;

/// Returns the time until the end at the present speed: "ETA 1:05", "ETA 2:00:09". Empty in the
/// first second, when the speed says little.
std::string TimeLeft(std::uint64_t done, std::uint64_t total, double seconds) {
  if (seconds < 1 || done == 0 || done >= total) {
    return {};
  }
  const double left = seconds * static_cast<double>(total - done) / static_cast<double>(done);
  constexpr double kMost = 100.0 * 3600;
  if (left >= kMost) {
    return "  ETA > 100 h";
  }
  const long rounded = std::lround(left);
  std::array<char, 32> text{};
  if (rounded >= 3600) {
    std::snprintf(text.data(), text.size(), "  ETA %ld:%02ld:%02ld", rounded / 3600,
                  rounded / 60 % 60, rounded % 60);
  } else {
    std::snprintf(text.data(), text.size(), "  ETA %ld:%02ld", rounded / 60, rounded % 60);
  }
  return text.data();
}

std::size_t TerminalColumns() {
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace

Progress::Progress(std::string verb, bool quiet)
    : verb_(std::move(verb)),
      quiet_(quiet),
      terminal_(::isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      next_(terminal_ ? start_ : start_ + kLineInterval) {}

ProgressFunction Progress::function() {
  if (quiet_) {
    return {};
  }
  return [this](std::uint64_t done, std::uint64_t total) { Show(done, total); };
}

double Progress::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

void Progress::Show(std::uint64_t done, std::uint64_t total) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  const auto now = Clock::now();
  if (!lock.owns_lock() || now < next_) {
    return;  // Another thread is drawing, or one has just drawn.
  }
  next_ = now + (terminal_ ? Clock::duration(kBarInterval) : Clock::duration(kLineInterval));
  const double share =
      total == 0 ? 1.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const auto filled = static_cast<std::size_t>(share * static_cast<double>(kBarWidth));
  std::array<char, 16> percent{};
  std::snprintf(percent.data(), percent.size(), "%3d%%", static_cast<int>(share * 100));
  std::string line = verb_ + " ";
  if (terminal_) {
    line += "[" + std::string(filled, '#') + std::string(kBarWidth - filled, '.') + "] ";
  }
  line += percent.data();
  line += "  " + FormatBytes(done) + " of " + FormatBytes(total) + "  " +
          FormatBytes(
              static_cast<std::uint64_t>(static_cast<double>(done) / std::max(seconds(), 1e-6))) +
          "/s" + TimeLeft(done, total, seconds());
  if (terminal_) {
    // A wrapped line could not be redrawn in place.
    line = "\r" + line.substr(0, TerminalColumns() - 1) + "\x1b[K";
    drawn_ = true;
  } else {
    line += "\n";
  }
  std::fputs(line.c_str(), stderr);
}

void Progress::Finish() {
  const std::scoped_lock lock(mutex_);
  if (drawn_) {
    std::fputs("\r\x1b[K", stderr);
    drawn_ = false;
  }
}

std::string BytesAndSpeed(std::uint64_t bytes, double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), " in %.2f s (", seconds);
  const double speed = static_cast<double>(bytes) / std::max(seconds, 1e-6);
  return FormatBytes(bytes) + text.data() + FormatBytes(static_cast<std::uint64_t>(speed)) + "/s)";
}

}  // namespace varve::cli
