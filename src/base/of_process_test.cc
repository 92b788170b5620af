#include "base/of_process.h"

#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>

namespace varve {
namespace {

struct Counted {
  std::mutex mutex;
  int count = 0;
};

OfProcess<Counted> counted;

TEST(OfProcess, AllThreadsOfAProcessHaveOneValue) {
  std::mutex mutex;
  std::set<Counted*> seen;
  std::vector<std::jthread> threads(8);
  for (std::jthread& thread : threads) {
    thread = std::jthread([&] {
      Counted* const value = &counted.Get();
      const std::scoped_lock lock(mutex);
      seen.insert(value);
    });
  }
  threads.clear();
  EXPECT_EQ(seen.size(), 1U);
}

TEST(OfProcess, AForkedChildBeginsAnewThoughALockIsHeld) {
  counted.Get().count = 3;
  const std::scoped_lock held(counted.Get().mutex);
  const ::pid_t child = ::fork();
  if (child == 0) {
    const std::scoped_lock free(counted.Get().mutex);  // Hangs with the parent's.
    ::_exit(counted.Get().count);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(counted.Get().count, 3);
}

}  // namespace
}  // namespace varve
