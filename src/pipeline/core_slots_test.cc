#include "pipeline/core_slots.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace varve::core_slots_test {
namespace {

TEST(CoreSlotsTest, NeverMoreThreadsInsideThanSlotsAndEveryThreadIsServed) {
  constexpr int kSlots = 2;
  constexpr int kTurns = 20'000;
  CoreSlots slots(kSlots);
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  std::atomic<int> served{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&] {
        for (int turn = 0; turn < kTurns / 8; ++turn) {
          const CoreSlots::Holder slot(&slots);
          const int now = ++inside;
          int seen = most;
          while (seen < now && !most.compare_exchange_weak(seen, now)) {
          }
          ++served;
          --inside;
        }
      });
    }
  }
  EXPECT_EQ(served, kTurns);
  EXPECT_LE(most, kSlots);
}

}  // namespace
}  // namespace varve::core_slots_test
