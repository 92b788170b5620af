#include "pipeline/run_threads.h"

#include <atomic>
#include <new>
#include <stop_token>
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

}  // namespace
}  // namespace varve::run_threads_test
