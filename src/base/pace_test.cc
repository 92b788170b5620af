#include "base/pace.h"

#include <gtest/gtest.h>

namespace varve::pace_test {
namespace {

using std::chrono::milliseconds;
const TimePoint kStart = TimePoint(std::chrono::hours(1));

TEST(Pace, ATransferBeginsWhenTheTimeOfThoseBeforeItHasPassed) {
  Pace pace(1000);
  EXPECT_EQ(pace.Reserve(500, kStart), kStart);
  EXPECT_EQ(pace.Reserve(250, kStart), kStart + milliseconds(500));
  EXPECT_EQ(pace.Reserve(1, kStart), kStart + milliseconds(750));
}

TEST(Pace, TimeInWhichNothingWasSentIsNotMadeUpFor) {
  Pace pace(1000);
  (void)pace.Reserve(500, kStart);
  const TimePoint later = kStart + std::chrono::seconds(10);
  EXPECT_EQ(pace.Reserve(500, later), later);
  EXPECT_EQ(pace.Reserve(500, later), later + milliseconds(500));
}

TEST(Pace, WithoutALimitNothingWaits) {
  Pace pace;
  EXPECT_EQ(pace.Reserve(std::uint64_t{1} << 40, kStart), kStart);
  EXPECT_EQ(pace.Reserve(1, kStart), kStart);
}

}  // namespace
}  // namespace varve::pace_test
