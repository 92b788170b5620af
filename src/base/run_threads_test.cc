#include "base/run_threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <new>
#include <set>
#include <stop_token>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/status_matchers.h"

namespace varve::run_threads_test {
namespace {

using test::FailsWith;
using test::IsOk;

TEST(RunThreadsTest, EveryJobRunsOnce) {
  std::vector<std::atomic<int>> runs(1000);
  EXPECT_TRUE(IsOk(RunThreads(runs.size(), 4, {}, [&](std::size_t i) {
    ++runs[i];
    return Status::Ok();
  })));
  for (const auto& count : runs) {
    EXPECT_EQ(count, 1);
  }
}

TEST(RunThreadsTest, AJobWithoutMemoryIsAnErrorOnWhicheverThreadItRan) {
  for (const int threads : {1, 4}) {
    for (std::size_t bad = 0; bad < 8; ++bad) {
      EXPECT_TRUE(FailsWith(RunThreads(8, threads, {},
                                       [&](std::size_t i) {
                                         if (i == bad) {
                                           throw std::bad_alloc();
                                         }
                                         return Status::Ok();
                                       }),
                            StatusCode::kOutOfSpace, {"no memory"}));
    }
  }
}

TEST(RunThreadsTest, AStopThatWasRequestedEndsIt) {
  std::stop_source source;
  std::atomic<int> ran{0};
  const Status status = RunThreads(1000, 2, source.get_token(), [&](std::size_t) {
    source.request_stop();
    ++ran;
    return Status::Ok();
  });
  EXPECT_TRUE(FailsWith(status, StatusCode::kCancelled));
  EXPECT_LE(ran, 2);
}

TEST(RunThreadsWhereSlowTest, OnlySlowJobsGetMoreThreads) {
  for (const bool slow : {false, true}) {
    std::vector<std::atomic<int>> runs(200);
    std::mutex mutex;
    std::set<std::thread::id> threads;
    const auto at_once = slow ? std::chrono::nanoseconds(0) : std::chrono::hours(1);
    EXPECT_TRUE(IsOk(RunThreadsWhereSlow(runs.size(), 4, at_once, [&](std::size_t i) {
      ++runs[i];
      std::unique_lock lock(mutex);
      threads.insert(std::this_thread::get_id());
      // The others have to take a job before this thread goes on.
      if (slow && i >= 64 && i < 68) {
        lock.unlock();
        while (std::count(runs.begin() + 64, runs.begin() + 68, 0) > 0) {
          std::this_thread::yield();
        }
      }
      return Status::Ok();
    })));
    EXPECT_EQ(threads.size(), slow ? 4U : 1U);
    EXPECT_TRUE(
        std::all_of(runs.begin(), runs.end(), [](const auto& count) { return count == 1; }));
  }
}

}  // namespace
}  // namespace varve::run_threads_test
