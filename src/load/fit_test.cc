// Loads into tensors of another size than the stored ones (LoadOptions::fit).

#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "storages/memory.h"
#include "support/small_state.h"
#include "support/status_matchers.h"
#include "tensor/box.h"

namespace varve::test::fit_test {
namespace {

using Floats = std::vector<float>;

constexpr auto kInvalid = StatusCode::kInvalidArgument;

/// Saves "w", 0 to 11 in 4 rows of 3, and opens it.
std::unique_ptr<CheckpointReader> Saved(Storage& storage) {
  Floats values(12);
  std::iota(values.begin(), values.end(), 0.0F);
  EXPECT_TRUE(IsOk(SmallState().Tensor("w", DType::kFloat32, {4, 3}, values).Save(storage, "/ck")));
  return CheckpointReader::Open("/ck", storage).value();
}

/// Loads with kOverlap.
Result<LoadReport> Overlapping(CheckpointReader& reader, std::vector<TargetTensor> targets,
                               LoadOptions options = {}) {
  LoadRequest request;
  request.targets = std::move(targets);
  options.fit = Fit::kOverlap;
  return Load(reader, request, options);
}

TargetTensor Target(const Dims& shape, const Box& box, void* memory, Strides strides = {}) {
  return {"w", DType::kFloat32, shape, box, memory, std::move(strides)};
}

TargetTensor Whole(const Dims& shape, Floats* memory) {
  return Target(shape, WholeBox(shape), memory->data());
}

TEST(FitOverlap, FillsTheFirstRowsOfAGrownTensorAndReportsBothShapes) {
  MemoryStorage storage;
  const auto reader = Saved(storage);
  Floats grown(18, -1);
  const auto report = Overlapping(*reader, {Whole({6, 3}, &grown)});
  ASSERT_TRUE(IsOk(report));
  EXPECT_EQ(grown, (Floats{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(report->resized, (std::vector<ResizedTensor>{{"w", {4, 3}, {6, 3}}}));
  EXPECT_EQ(report->loaded, 1U);
  EXPECT_TRUE(report->mismatched.empty());
}

TEST(FitOverlap, TakesTheCommonPartInEveryDimension) {
  MemoryStorage storage;
  const auto reader = Saved(storage);
  Floats memory(10, -1);  // Fewer rows, more columns.
  ASSERT_TRUE(IsOk(Overlapping(*reader, {Whole({2, 5}, &memory)})));
  EXPECT_EQ(memory, (Floats{0, 1, 2, -1, -1, 3, 4, 5, -1, -1}));
}

TEST(FitOverlap, FillsABoxOfTheWantedTensorThroughItsStrides) {
  MemoryStorage storage;
  const auto reader = Saved(storage);
  // Rows 3 and 4, columns 1 to 3 of a tensor of 8 by 4; by columns in memory.
  Floats memory(6, -1);
  ASSERT_TRUE(
      IsOk(Overlapping(*reader, {Target({8, 4}, {{3, 1}, {2, 3}}, memory.data(), {1, 2})})));
  EXPECT_EQ(memory, (Floats{10, -1, 11, -1, -1, -1}));
}

TEST(FitOverlap, LeavesABoxAloneThatHoldsNewRowsOnly) {
  MemoryStorage storage;
  const auto reader = Saved(storage);
  Floats memory(6, -1);
  const auto report = Overlapping(*reader, {Target({8, 3}, {{6, 0}, {2, 3}}, memory.data())});
  ASSERT_TRUE(IsOk(report));
  EXPECT_EQ(memory, Floats(6, -1));
  EXPECT_EQ(report->resized.size(), 1U);
  EXPECT_TRUE(report->missing.empty());
}

TEST(FitOverlap, ConvertsWithCast) {
  MemoryStorage storage;
  const auto reader = Saved(storage);
  std::vector<double> grown(15, -1);
  TargetTensor target = Target({5, 3}, WholeBox({5, 3}), grown.data());
  target.dtype = DType::kFloat64;
  ASSERT_TRUE(IsOk(Overlapping(*reader, {target}, {.cast = true})));
  EXPECT_EQ(grown, (std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, -1, -1, -1}));
}

TEST(FitOverlap, FindsTheTiedNameOfAGrownTensor) {
  MemoryStorage storage;
  const auto reader = Saved(storage);
  Floats grown(18, -1);
  TargetTensor head = Whole({6, 3}, &grown);
  head.fqn = "head";  // Stored under the other name of this memory alone.
  const auto report = Overlapping(*reader, {head, Whole({6, 3}, &grown)});
  ASSERT_TRUE(IsOk(report));
  EXPECT_TRUE(report->missing.empty());
  EXPECT_EQ(grown[11], 11);
}

TEST(FitOverlap, RefusesAnotherNumberOfDimensionsAndDtype) {
  MemoryStorage storage;
  const auto reader = Saved(storage);
  Floats memory(12, -1);
  EXPECT_TRUE(FailsWith(Overlapping(*reader, {Whole({12}, &memory)}), kInvalid,
                        {"stored float32[4, 3], wanted float32[12]"}));
  TargetTensor other = Whole({2, 3}, &memory);
  other.dtype = DType::kInt32;
  EXPECT_TRUE(FailsWith(Overlapping(*reader, {other}), kInvalid, {"wanted int32[2, 3]"}));
  EXPECT_TRUE(FailsWith(Overlapping(*reader, {Target({5, 3}, {{4, 0}, {2, 3}}, memory.data())}),
                        kInvalid, {"tensor \"w\""}));
  EXPECT_EQ(memory, Floats(12, -1));
}

TEST(FitExact, RefusesAnotherSizeAndNamesTheWayOut) {
  MemoryStorage storage;
  const auto reader = Saved(storage);
  Floats memory(18, -1);
  LoadRequest request;
  request.targets = {Whole({6, 3}, &memory)};
  EXPECT_TRUE(FailsWith(Load(*reader, request), kInvalid,
                        {"stored float32[4, 3], wanted float32[6, 3]", "fit=\"overlap\""}));
  EXPECT_EQ(memory, Floats(18, -1));
}

}  // namespace
}  // namespace varve::test::fit_test
