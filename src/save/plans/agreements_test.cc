#include "save/plans/agreements.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace varve::agreements_test {
namespace {

TEST(PlansAsBefore, HaveFewOtherSizesOfFewBytes) {
  constexpr std::uint64_t kMiB = 1 << 20;
  EXPECT_TRUE(MayChange({{0, 64 * kMiB}}));
  EXPECT_TRUE(MayChange({{0, 40 * kMiB}, {1, 24 * kMiB}}));
  EXPECT_FALSE(MayChange({{0, 64 * kMiB + 1}}));
  EXPECT_FALSE(MayChange({{0, 40 * kMiB}, {1, 40 * kMiB}}));
  EXPECT_FALSE(MayChange({{0, 1}, {1, ~std::uint64_t{0}}}));
  EXPECT_FALSE(MayChange(std::vector<ObjectSize>(kMostChangedSizes + 1)));
}

}  // namespace
}  // namespace varve::agreements_test
