#include "base/seconds.h"

#include <chrono>
#include <cstddef>
#include <cstdio>

namespace varve {

TimePoint After(TimePoint time, double seconds) {
  const std::chrono::duration<double> room = TimePoint::max() - time;
  return seconds >= room.count() / 2 ? TimePoint::max()
                                     : time + std::chrono::duration_cast<TimePoint::duration>(
                                                  std::chrono::duration<double>(seconds));
}

std::string InSeconds(double seconds) {
  std::string text(32, '\0');
  text.resize(static_cast<std::size_t>(std::snprintf(text.data(), text.size(), "%g", seconds)));
  return text + " s";
}

}  // namespace varve
