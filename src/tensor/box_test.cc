#include "tensor/box.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "support/boxes.h"
#include "support/random.h"
#include "support/status_matchers.h"

namespace varve::box_test {
namespace {

using test::Elements;
using test::FailsWith;
using test::IsOk;
using test::Random;

using ElementSet = std::set<Dims>;

ElementSet SetOf(const Box& box) {
  const auto elements = Elements(box);
  return {elements.begin(), elements.end()};
}

/// Returns the elements of all boxes; fails when two boxes share one.
ElementSet SetOfDisjoint(const std::vector<Box>& boxes) {
  ElementSet all;
  for (const Box& box : boxes) {
    for (const Dims& element : Elements(box)) {
      EXPECT_TRUE(all.insert(element).second) << ToString(element) << " is in two boxes";
    }
  }
  return all;
}

ElementSet Minus(ElementSet from, const Box& hole) {
  for (const Dims& element : Elements(hole)) {
    from.erase(element);
  }
  return from;
}

struct TwoBoxes {
  Box a;
  Box b;
};

/// Returns small boxes of 0 to 3 dimensions, some empty.
TwoBoxes RandomTwo(Random* random) {
  const Dims shape = random->Shape(random->Below(4), 1, 5);
  return {random->BoxIn(shape, true), random->BoxIn(shape, true)};
}

TEST(Box, IntersectionIsTheSetOfCommonElements) {
  Random random(1);
  for (int i = 0; i < 3000; ++i) {
    const auto [a, b] = RandomTwo(&random);
    ElementSet common;
    for (const Dims& element : Elements(a)) {
      if (SetOf(b).contains(element)) {
        common.insert(element);
      }
    }
    const auto got = Intersect(a, b);
    ASSERT_EQ(got.has_value(), !common.empty()) << ToString(a) << " " << ToString(b);
    if (got) {
      ASSERT_EQ(SetOf(*got), common) << ToString(a) << " " << ToString(b);
    }
  }
}

TEST(Box, ContainsMeansEveryElementIsInside) {
  Random random(2);
  for (int i = 0; i < 3000; ++i) {
    const auto [a, b] = RandomTwo(&random);
    const ElementSet outer = SetOf(a);
    const ElementSet inner = SetOf(b);
    const bool inside = std::includes(outer.begin(), outer.end(), inner.begin(), inner.end());
    ASSERT_EQ(Contains(a, b), inside) << ToString(a) << " " << ToString(b);
  }
}

TEST(Box, SubtractionLeavesDisjointBoxesOfTheOtherElements) {
  Random random(3);
  for (int i = 0; i < 3000; ++i) {
    const auto [a, b] = RandomTwo(&random);
    const auto rest = Subtract(a, b);
    ASSERT_EQ(SetOfDisjoint(rest), Minus(SetOf(a), b)) << ToString(a) << " " << ToString(b);
    ASSERT_LE(rest.size(), std::max<std::size_t>(2 * a.sizes.size(), 1));
    ASSERT_TRUE(std::none_of(rest.begin(), rest.end(), IsEmpty));
  }
}

TEST(Box, SubtractAllLeavesWhatNoHoleCovers) {
  Random random(4);
  for (int i = 0; i < 1000; ++i) {
    const Dims shape = random.Shape(random.Below(4), 1, 5);
    const Box box = random.BoxIn(shape, true);
    std::vector<Box> holes(random.Below(5));
    ElementSet want = SetOf(box);
    for (Box& hole : holes) {
      hole = random.BoxIn(shape, true);
      want = Minus(std::move(want), hole);
    }
    ASSERT_EQ(SetOfDisjoint(SubtractAll(box, holes)), want);
  }
}

TEST(Box, ATilingLeavesNothing) {
  Random random(5);
  for (int i = 0; i < 300; ++i) {
    const Box whole = WholeBox(random.Shape(random.Between(1, 3), 1, 6));
    auto tiles = test::RandomTiling(whole, 8, &random);
    random.Shuffle(&tiles);
    ASSERT_TRUE(SubtractAll(whole, tiles).empty());
  }
}

TEST(Box, TwoScalarBoxesAreTheSameElement) {
  const Box scalar;
  EXPECT_EQ(Intersect(scalar, scalar), scalar);
  EXPECT_TRUE(Subtract(scalar, scalar).empty());
  EXPECT_EQ(Volume(scalar.sizes), 1U);
  EXPECT_FALSE(IsEmpty(scalar));
}

TEST(Box, PrintsAsSlices) {
  EXPECT_EQ(ToString(Box{{0, 8}, {4, 8}}), "[0:4, 8:16]");
  EXPECT_EQ(ToString(Box{}), "[]");
  EXPECT_EQ(ToString(Dims{4, 16}), "[4, 16]");
}

TEST(RowMajorStrides, EqualTheDistanceOfNeighbours) {
  EXPECT_EQ(RowMajorStrides({2, 3, 4}), (Strides{12, 4, 1}));
  EXPECT_EQ(RowMajorStrides({2, 0, 4}), (Strides{4, 4, 1}));
  EXPECT_EQ(RowMajorStrides({}), Strides{});
}

TEST(CheckBox, AcceptsBoxesUpToTheEdge) {
  EXPECT_TRUE(IsOk(CheckBox({4, 6}, {{0, 0}, {4, 6}}, 4)));
  EXPECT_TRUE(IsOk(CheckBox({4, 6}, {{4, 6}, {0, 0}}, 4)));
  EXPECT_TRUE(IsOk(CheckBox({}, {}, 16)));
  EXPECT_TRUE(IsOk(CheckBox({std::uint64_t{1} << 58}, {{0}, {1}}, 16)));
}

TEST(CheckBox, RejectsHostileGeometry) {
  const std::uint64_t max = ~std::uint64_t{0};
  const auto invalid = StatusCode::kInvalidArgument;
  EXPECT_TRUE(FailsWith(CheckBox({4}, {{0, 0}, {4, 1}}, 4), invalid, {"dimensions"}));
  EXPECT_TRUE(FailsWith(CheckBox({4}, {{0}, {}}, 4), invalid, {"dimensions"}));
  EXPECT_TRUE(FailsWith(CheckBox({4}, {{1}, {4}}, 4), invalid, {"outside"}));
  EXPECT_TRUE(FailsWith(CheckBox({4}, {{max}, {2}}, 4), invalid, {"outside"}));
  EXPECT_TRUE(FailsWith(CheckBox({max}, {{0}, {1}}, 2), invalid, {"2^62"}));
  EXPECT_TRUE(FailsWith(CheckBox({max, max}, {{0, 0}, {1, 1}}, 1), invalid, {"2^62"}));
}

}  // namespace
}  // namespace varve::box_test
