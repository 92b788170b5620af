/// Runs every rank of an in-process world on a thread of its own.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "varve/coordinator.h"

namespace varve::test {

using World = std::vector<std::unique_ptr<Coordinator>>;

/// Returns a deadline that no test meets.
inline Deadline LongDeadline() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(60);
}
/// Returns a deadline that passes within a test.
inline Deadline ShortDeadline() {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(30);
}

/// Returns a deadline that passes within a test, and that ranks which do not wait for others meet.
inline Deadline SoonDeadline() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(3);
}

/// Calls `body` for each rank of `world` that is still there, at the same time; results by rank.
template <class Body>
auto OnEveryRank(const World& world, const Body& body) {
  using Returned = decltype(body(*world[0]));
  std::vector<std::optional<Returned>> results(world.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < world.size(); ++rank) {
      if (world[rank] != nullptr) {
        threads.emplace_back([&, rank] { results[rank].emplace(body(*world[rank])); });
      }
    }
  }
  return results;
}

}  // namespace varve::test
