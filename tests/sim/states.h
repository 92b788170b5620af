/// The states that simulated jobs save, made once for all runs.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "crash/states.h"

namespace varve::sim {

inline constexpr int kVersions = 7;
inline constexpr int kMostRanks = 3;

/// Returns the state of a version from 1 to kVersions.
inline const test::JobState& StateOf(int version, int world) {
  static const auto states = [] {
    std::map<std::pair<int, int>, std::unique_ptr<test::JobState>> made;
    for (int v = 1; v <= kVersions; ++v) {
      for (int w = 1; w <= kMostRanks; ++w) {
        made[{v, w}] = std::make_unique<test::JobState>(v, w, 12);
      }
    }
    return made;
  }();
  return *states.at({version, world});
}

}  // namespace varve::sim
