#include "tensor/overlap.h"

#include <gtest/gtest.h>

#include "support/boxes.h"
#include "support/random.h"
#include "support/status_matchers.h"
#include "tensor/box.h"

namespace varve::overlap_test {
namespace {

using test::FailsWith;
using test::IsOk;

bool Overlaps(const std::vector<Box>& boxes) {
  const auto found = FindOverlap(boxes);
  EXPECT_TRUE(IsOk(found));
  if (!found.ok() || !*found) {
    return false;
  }
  EXPECT_NE((*found)->first, (*found)->second);
  EXPECT_TRUE(Intersect(boxes[(*found)->first], boxes[(*found)->second]));
  return true;
}

bool AnyTwoIntersect(const std::vector<Box>& boxes) {
  for (std::size_t a = 0; a < boxes.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      if (Intersect(boxes[a], boxes[b])) {
        return true;
      }
    }
  }
  return false;
}

TEST(Overlap, SmallCases) {
  EXPECT_FALSE(Overlaps({}));
  EXPECT_FALSE(Overlaps({{{}, {}}}));
  EXPECT_TRUE(Overlaps({{{}, {}}, {{}, {}}})) << "a 0-d tensor has one element";
  EXPECT_FALSE(Overlaps({{{0}, {4}}, {{4}, {4}}}));
  EXPECT_TRUE(Overlaps({{{0}, {5}}, {{4}, {4}}}));
  EXPECT_FALSE(Overlaps({{{0, 0}, {2, 4}}, {{0, 4}, {2, 4}}, {{2, 0}, {2, 8}}}));
  EXPECT_TRUE(Overlaps({{{0, 0}, {2, 4}}, {{0, 4}, {3, 4}}, {{2, 0}, {2, 8}}}));
}

TEST(Overlap, EmptyBoxesTakeNoPart) {
  EXPECT_FALSE(Overlaps({{{0}, {4}}, {{2}, {0}}, {{2}, {0}}, {{4}, {0}}}));
  EXPECT_FALSE(Overlaps({{{0, 0}, {0, 3}}, {{0, 0}, {0, 3}}}));
}

TEST(Overlap, AgreesWithComparingAllPairs) {
  test::Random random(7);
  int found = 0;
  for (int round = 0; round < 400; ++round) {
    const std::size_t dims = random.Between(1, 3);
    std::vector<Box> boxes;
    const std::uint64_t count = random.Between(2, 60);
    const std::uint64_t extent = random.Between(4, 60);
    for (std::uint64_t i = 0; i < count; ++i) {
      Box box;
      for (std::size_t d = 0; d < dims; ++d) {
        box.offsets.push_back(random.Below(extent));
        box.sizes.push_back(random.Below(random.OneIn(8) ? extent : 4));
      }
      // Most are made disjoint, so that both answers come up.
      const bool clear = std::none_of(boxes.begin(), boxes.end(), [&](const Box& other) {
        return !IsEmpty(box) && !IsEmpty(other) && Intersect(box, other);
      });
      if (clear || random.OneIn(60)) {
        boxes.push_back(std::move(box));
      }
    }
    const bool expected = AnyTwoIntersect(boxes);
    found += expected ? 1 : 0;
    EXPECT_EQ(Overlaps(boxes), expected) << "round " << round;
  }
  EXPECT_GT(found, 20);
  EXPECT_LT(found, 380);
}

TEST(Overlap, ATilingHasNone) {
  test::Random random(5);
  for (int i = 0; i < 300; ++i) {
    auto tiles = test::RandomTiling(WholeBox(random.Shape(random.Between(1, 3), 1, 6)), 8, &random);
    random.Shuffle(&tiles);
    ASSERT_FALSE(Overlaps(tiles));
  }
}

TEST(Overlap, LargeGridsTakeLittleTime) {
  std::vector<Box> boxes;
  constexpr std::uint64_t kSide = 300;
  for (std::uint64_t row = 0; row < kSide; ++row) {
    for (std::uint64_t column = 0; column < kSide; ++column) {
      boxes.push_back({{row * 3, column * 5, 0}, {3, 5, 7}});
    }
  }
  EXPECT_FALSE(Overlaps(boxes));
  boxes[kSide * kSide / 2].sizes[1] = 6;
  EXPECT_TRUE(Overlaps(boxes));
}

TEST(Overlap, ManyEqualBoxesAreFoundAtOnce) {
  EXPECT_TRUE(Overlaps(std::vector<Box>(200000, {{1, 2}, {3, 4}})));
}

TEST(Overlap, GivesUpOnBarsThatInterlock) {
  // Disjoint bars along each of three axes: every plane cuts a third of them or more.
  std::vector<Box> boxes;
  constexpr std::uint64_t kSide = 64;
  for (std::uint64_t a = 0; a < kSide; ++a) {
    for (std::uint64_t b = 0; b < kSide; ++b) {
      boxes.push_back({{0, 4 * a, 4 * b + 1}, {4 * kSide, 1, 1}});
      boxes.push_back({{4 * a + 1, 0, 4 * b + 2}, {1, 4 * kSide, 1}});
      boxes.push_back({{4 * a + 2, 4 * b + 3, 0}, {1, 1, 4 * kSide}});
    }
  }
  EXPECT_TRUE(FailsWith(FindOverlap(boxes), StatusCode::kInvalidArgument, {"interlock"}));
}

}  // namespace
}  // namespace varve::overlap_test
