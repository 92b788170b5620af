#include "plan/load_plan.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "support/boxes.h"
#include "support/random.h"
#include "support/status_matchers.h"
#include "tensor/box.h"

namespace varve::load_plan_test {
namespace {

using test::Elements;
using test::FailsWith;
using test::IsOk;
using test::Linear;
using test::Random;

/// Returns one tensor of two-byte elements, stored as these chunks.
Metadata Stored(const Dims& shape, std::vector<Box> boxes) {
  Metadata metadata;
  metadata.files.resize(1);
  TensorMetadata tensor{"w", DType::kInt16, shape, {}};
  std::sort(boxes.begin(), boxes.end(),
            [](const Box& a, const Box& b) { return a.offsets < b.offsets; });
  for (Box& box : boxes) {
    tensor.chunks.Listed().push_back({std::move(box), {}, {}});
  }
  metadata.tensors.push_back(std::move(tensor));
  return metadata;
}

TEST(PlanLoad, TakesOnlyTheChunksThatOverlap) {
  const Metadata metadata = Stored({9, 4}, {{{0, 0}, {3, 4}}, {{3, 0}, {3, 4}}, {{6, 0}, {3, 4}}});
  const auto reads = PlanLoad(metadata, {{"w", DType::kInt16, {9, 4}, {{4, 1}, {3, 2}}}});
  ASSERT_TRUE(IsOk(reads));
  ASSERT_EQ(reads->size(), 2U);
  EXPECT_EQ((*reads)[0].chunk, 1U);
  EXPECT_EQ((*reads)[0].common, (Box{{4, 1}, {2, 2}}));
  EXPECT_EQ((*reads)[1].chunk, 2U);
  EXPECT_EQ((*reads)[1].common, (Box{{6, 1}, {1, 2}}));
}

TEST(PlanLoad, LoadsScalarsAndNothingForEmptyBoxes) {
  EXPECT_EQ(PlanLoad(Stored({}, {{}}), {{"w", DType::kInt16, {}, {}}})->size(), 1U);
  EXPECT_EQ(PlanLoad(Stored({4}, {{{0}, {4}}}), {{"w", DType::kInt16, {4}, {{4}, {0}}}})->size(),
            0U);
  EXPECT_EQ(PlanLoad(Stored({0}, {{{0}, {0}}}), {{"w", DType::kInt16, {0}, {{0}, {0}}}})->size(),
            0U);
}

TEST(PlanLoad, NamesTheTensorAndWhatIsWrong) {
  const Metadata metadata = Stored({9, 4}, {{{0, 0}, {9, 4}}});
  const auto load = [&](LoadItem item) { return PlanLoad(metadata, {std::move(item)}); };
  EXPECT_TRUE(FailsWith(load({"v", DType::kInt16, {9, 4}, {{0, 0}, {9, 4}}}), StatusCode::kNotFound,
                        {"tensor \"v\""}));
  EXPECT_TRUE(FailsWith(load({"w", DType::kInt8, {9, 4}, {{0, 0}, {9, 4}}}),
                        StatusCode::kInvalidArgument, {"\"w\"", "int16[9, 4]", "int8[9, 4]"}));
  EXPECT_TRUE(FailsWith(load({"w", DType::kInt16, {4, 9}, {{0, 0}, {4, 9}}}),
                        StatusCode::kInvalidArgument, {"int16[4, 9]"}));
  EXPECT_TRUE(FailsWith(load({"w", DType::kInt16, {9, 4}, {{0, 0}, {10, 4}}}),
                        StatusCode::kInvalidArgument, {"\"w\"", "outside"}));
}

TEST(PlanLoad, NamesTheBoxThatNoChunkHolds) {
  const Metadata metadata = Stored({9, 4}, {{{0, 0}, {3, 4}}, {{6, 0}, {3, 4}}});
  EXPECT_TRUE(FailsWith(PlanLoad(metadata, {{"w", DType::kInt16, {9, 4}, {{2, 0}, {3, 2}}}}),
                        StatusCode::kDataLoss, {"tensor \"w\"", "[3:5, 0:2]"}));
  EXPECT_TRUE(IsOk(PlanLoad(metadata, {{"w", DType::kInt16, {9, 4}, {{6, 0}, {3, 4}}}})));
}

// Stored in one random layout, loaded in another: each element arrives, once, from its place.
TEST(PlanLoad, AnyLayoutReadsBackWhatAnyOtherStored) {
  Random random(1);
  for (int round = 0; round < 500; ++round) {
    const Dims shape = random.Shape(random.Below(4), 1, 7);
    const Box whole = WholeBox(shape);
    const std::string content = random.Bytes(Volume(shape) * 2);
    const Metadata metadata = Stored(shape, test::RandomTiling(whole, 6, &random));
    const auto& chunks = metadata.tensors[0].chunks;
    std::vector<std::string> stored;
    for (const Chunk& chunk : chunks) {
      std::string bytes;
      for (const Dims& index : Elements(chunk.box)) {
        bytes += content.substr(Linear(whole, index) * 2, 2);
      }
      stored.push_back(std::move(bytes));
    }
    std::vector<LoadItem> items;
    std::vector<std::string> targets;
    for (const Box& box : test::RandomTiling(whole, 6, &random)) {
      items.push_back({"w", DType::kInt16, shape, box});
      targets.emplace_back(Volume(box.sizes) * 2, '\0');
    }
    const auto reads = PlanLoad(metadata, items);
    ASSERT_TRUE(IsOk(reads));
    std::uint64_t moved = 0;
    for (const PlannedRead& read : *reads) {
      const Box& box = items[read.item].box;
      const Region region(chunks[read.chunk].box,
                          {reinterpret_cast<std::byte*>(targets[read.item].data()), box,
                           RowMajorStrides(box.sizes), 2},
                          read.common);
      region.CopyToMemory(0, std::as_bytes(std::span(stored[read.chunk])));
      moved += region.bytes();
    }
    EXPECT_EQ(moved, content.size()) << "each element once";
    for (std::size_t i = 0; i < items.size(); ++i) {
      std::string want;
      for (const Dims& index : Elements(items[i].box)) {
        want += content.substr(Linear(whole, index) * 2, 2);
      }
      ASSERT_EQ(targets[i], want) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace varve::load_plan_test
