/// A system without huge pages, for this process.
#pragma once

#include <sys/prctl.h>

namespace varve::test {

/// Refuses huge pages to all memory of this process while it lives, where the system can.
class NoHugePages {
 public:
  NoHugePages() : before_(::prctl(PR_GET_THP_DISABLE, 0UL, 0UL, 0UL, 0UL)) {
    done_ = before_ >= 0 && ::prctl(PR_SET_THP_DISABLE, 1UL, 0UL, 0UL, 0UL) == 0;
  }
  NoHugePages(const NoHugePages&) = delete;
  NoHugePages& operator=(const NoHugePages&) = delete;
  ~NoHugePages() {
    if (done_ && before_ == 0) {
      ::prctl(PR_SET_THP_DISABLE, 0UL, 0UL, 0UL, 0UL);
    }
  }
  [[nodiscard]] bool done() const { return done_; }

 private:
  const int before_;
  bool done_ = false;
};

}  // namespace varve::test
