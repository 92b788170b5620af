
#include <gtest/gtest.h>

#include "tensor/box.h"

namespace varve::flat_runs_test {
namespace {

/// Returns the place of a box's first element in the flattened tensor.
std::uint64_t FlatBegin(const Dims& shape, const Box& box) {
  std::uint64_t at = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    at = at * shape[d] + box.offsets[d];
  }
  return at;
}

/// Returns the place behind a box's last element.
std::uint64_t FlatEnd(const Dims& shape, const Box& box) {
  std::uint64_t last = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    last = last * shape[d] + box.offsets[d] + box.sizes[d] - 1;
  }
  return last + 1;
}

TEST(FlatRunBoxes, CoverEveryRangeInOrderWithFewContiguousBoxes) {
  for (const Dims& shape : {Dims{7}, Dims{1}, Dims{3, 4}, Dims{4, 1}, Dims{1, 5}, Dims{2, 3, 4},
                            Dims{3, 1, 2}, Dims{1, 1, 1}, Dims{2, 2, 1, 3}, Dims{2, 3, 2, 2}}) {
    const std::uint64_t count = Volume(shape);
    for (std::uint64_t begin = 0; begin <= count; ++begin) {
      for (std::uint64_t end = begin; end <= count; ++end) {
        SCOPED_TRACE(ToString(shape) + " from " + std::to_string(begin) + " to " +
                     std::to_string(end));
        std::uint64_t at = begin;
        const std::vector<Box> boxes = FlatRunBoxes(shape, begin, end);
        EXPECT_LE(boxes.size(), 2 * shape.size() - 1);
        for (const Box& box : boxes) {
          EXPECT_TRUE(CheckBox(shape, box, 1).ok());
          EXPECT_EQ(FlatBegin(shape, box), at);
          EXPECT_EQ(FlatEnd(shape, box), at + Volume(box.sizes));  // Contiguous.
          at += Volume(box.sizes);
        }
        EXPECT_EQ(at, end);
      }
    }
  }
}

TEST(FlatRunBoxes, TakeAWholeTensorAsOneBox) {
  EXPECT_EQ(FlatRunBoxes({5, 6, 7}, 0, 210), std::vector{WholeBox({5, 6, 7})});
}

TEST(FlatRunBoxes, TakeTheElementOfAZeroDimensionalTensor) {
  EXPECT_EQ(FlatRunBoxes({}, 0, 1), std::vector{WholeBox({})});
  EXPECT_TRUE(FlatRunBoxes({}, 0, 0).empty());
}

TEST(FlatRunBoxes, AreNoneForATensorWithoutElements) {
  EXPECT_TRUE(FlatRunBoxes({3, 0, 2}, 0, 0).empty());
}

TEST(FlatRunBoxes, JoinWholeRowsBetweenTwoPartsOfRows) {
  EXPECT_EQ(FlatRunBoxes({4, 10}, 7, 34),
            (std::vector<Box>{{{0, 7}, {1, 3}}, {{1, 0}, {2, 10}}, {{3, 0}, {1, 4}}}));
}

}  // namespace
}  // namespace varve::flat_runs_test
