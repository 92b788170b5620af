/// Time limits that are given as seconds.
#pragma once

#include <string>

#include "base/time_source.h"

namespace varve {

/// Returns `time` + `seconds`, or the end of time.
TimePoint After(TimePoint time, double seconds);

/// Returns "7.5 s".
std::string InSeconds(double seconds);

}  // namespace varve
