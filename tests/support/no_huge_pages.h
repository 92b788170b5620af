/// A system without huge pages, for this process.
#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>

namespace varve::test {

/// Refuses huge pages to all memory of this process while it lives.
class NoHugePages {
 public:
  NoHugePages() { EXPECT_EQ(::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0); }
  NoHugePages(const NoHugePages&) = delete;
  NoHugePages& operator=(const NoHugePages&) = delete;
  ~NoHugePages() { ::prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0); }
};

}  // namespace varve::test
