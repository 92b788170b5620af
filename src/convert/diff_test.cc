// Differences between two checkpoints, and their sizes.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "storages/memory.h"
#include "support/small_state.h"
#include "support/status_matchers.h"
#include "varve/convert.h"

namespace varve::test::diff_test {
namespace {

using Kind = Difference::Kind;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

DiffReport DiffOf(const SmallState& a, const SmallState& b) {
  MemoryStorage storage;
  EXPECT_TRUE(IsOk(a.Save(storage, "/a")));
  EXPECT_TRUE(IsOk(b.Save(storage, "/b")));
  const auto report = Diff("/a", "/b", storage);
  EXPECT_TRUE(IsOk(report));
  return report.ok() ? *report : DiffReport{};
}

/// Returns the one difference between two float tensors; nothing where they are equal.
std::optional<Difference> DiffOfFloats(const std::vector<float>& a, const std::vector<float>& b) {
  const DiffReport report = DiffOf(SmallState().Floats("w", a), SmallState().Floats("w", b));
  EXPECT_EQ(report.differences.size() + report.equal_tensors, 1U);
  return report.differences.empty() ? std::nullopt : std::optional(report.differences.front());
}

TEST(Diff, FindsNoDifferenceBetweenSavesOfTheSameState) {
  const SmallState state = [] {
    SmallState made;
    made.Floats("w", {1, 2}).Object("step", Value::Int(7));
    return made;
  }();
  const DiffReport report = DiffOf(state, state);
  EXPECT_TRUE(report.differences.empty());
  EXPECT_EQ(report.equal_tensors, 1U);
  EXPECT_EQ(report.equal_objects, 1U);
}

TEST(Diff, ListsNamesOfOneSideOnlyInOrder) {
  const DiffReport report = DiffOf(SmallState().Floats("d", {1}).Object("b", Value::Int(7)),
                                   SmallState().Floats("a", {1, 2}).Object("c", Value::Str("x")));
  ASSERT_EQ(report.differences.size(), 4U);
  const std::vector<std::string> names{"a", "b", "c", "d"};
  const std::vector<Kind> kinds{Kind::kOnlyInB, Kind::kOnlyInA, Kind::kOnlyInB, Kind::kOnlyInA};
  const std::vector<std::string> details{"float32[2]", "7", "'x'", "float32[1]"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(report.differences[i].fqn, names[i]);
    EXPECT_EQ(report.differences[i].kind, kinds[i]) << names[i];
    EXPECT_EQ(report.differences[i].detail, details[i]);
  }
}

TEST(Diff, NamesBothShapes) {
  const auto difference = DiffOfFloats({1, 2}, {1, 2, 3});
  ASSERT_TRUE(difference.has_value());
  EXPECT_EQ(difference->kind, Kind::kShape);
  EXPECT_EQ(difference->detail, "float32[2] and float32[3]");
}

TEST(Diff, ReportsTensorAgainstPlainValueOnceFromEitherSide) {
  const SmallState tensor = std::move(SmallState().Floats("x", {1}));
  const SmallState value = std::move(SmallState().Object("x", Value::Int(1)));
  for (const bool tensor_first : {true, false}) {
    const DiffReport report = tensor_first ? DiffOf(tensor, value) : DiffOf(value, tensor);
    ASSERT_EQ(report.differences.size(), 1U);
    EXPECT_EQ(report.differences[0].kind, Kind::kShape);
    EXPECT_EQ(report.differences[0].detail,
              tensor_first ? "float32[1] and a plain value" : "a plain value and float32[1]");
  }
}

TEST(Diff, NamesBothValuesThatDiffer) {
  const DiffReport report = DiffOf(SmallState().Object("step", Value::Int(7)),
                                   SmallState().Object("step", Value::Int(8)));
  ASSERT_EQ(report.differences.size(), 1U);
  EXPECT_EQ(report.differences[0].kind, Kind::kValues);
  EXPECT_EQ(report.differences[0].detail, "7 and 8");
}

// ---- numbers ----

TEST(Diff, MeasuresLargestAbsoluteAndRelativeError) {
  const auto difference = DiffOfFloats({1, 100, 5, 0}, {2, 104, 5, 0});
  ASSERT_TRUE(difference.has_value());
  EXPECT_EQ(difference->kind, Kind::kValues);
  EXPECT_EQ(difference->elements, 4U);
  EXPECT_EQ(difference->differing, 2U);
  EXPECT_EQ(difference->max_abs_error, 4.0) << "of 100 and 104";
  EXPECT_EQ(difference->max_rel_error, 0.5) << "of 1 and 2";
}

TEST(Diff, CountsNansOfAnyPayloadAndZerosOfEitherSignAsEqual) {
  EXPECT_FALSE(DiffOfFloats({kNan, 0.0F}, {-kNan, -0.0F}).has_value());
}

TEST(Diff, ErrorIsInfiniteWhereOneSideIsNotFinite) {
  for (const auto& [a, b] : {std::pair{kInfinity, 1.0F}, {1.0F, kNan}, {kInfinity, -kInfinity}}) {
    const auto difference = DiffOfFloats({a}, {b});
    ASSERT_TRUE(difference.has_value());
    EXPECT_EQ(difference->differing, 1U);
    EXPECT_TRUE(std::isinf(difference->max_abs_error));
    EXPECT_TRUE(std::isinf(difference->max_rel_error));
  }
}

TEST(Diff, ComparesValuesAcrossTypes) {
  const DiffReport report =
      DiffOf(SmallState().Floats("w", {1, 2.5}),
             SmallState().Tensor("w", DType::kFloat64, {2}, std::vector<double>{1, 2}));
  ASSERT_EQ(report.differences.size(), 1U);
  EXPECT_EQ(report.differences[0].kind, Kind::kDType) << "even where all values are equal";
  EXPECT_EQ(report.differences[0].detail, "float32[2] and float64[2]");
  EXPECT_EQ(report.differences[0].differing, 1U);
  EXPECT_EQ(report.differences[0].max_abs_error, 0.5);
}

TEST(Diff, TellsIntegersApartThatAreOneAsDoubles) {
  constexpr std::int64_t kLarge = std::int64_t{1} << 60;
  const auto state = [](std::int64_t last) {
    return std::move(
        SmallState().Tensor("n", DType::kInt64, {2}, std::vector<std::int64_t>{1, last}));
  };
  const DiffReport report = DiffOf(state(kLarge), state(kLarge + 1));
  ASSERT_EQ(report.differences.size(), 1U);
  EXPECT_EQ(report.differences[0].differing, 1U);
}

TEST(Diff, TakesAComplexAndARealTensorToDifferInEveryElement) {
  const DiffReport report =
      DiffOf(SmallState().Tensor("w", DType::kComplex64, {2}, std::vector<float>{1, 0, 2, 0}),
             SmallState().Floats("w", {1, 2}));
  ASSERT_EQ(report.differences.size(), 1U);
  EXPECT_EQ(report.differences[0].differing, 2U);
  EXPECT_TRUE(std::isinf(report.differences[0].max_abs_error));
}

// ---- the call itself ----

TEST(Diff, ComparesLargeTensorsToTheLastElementAndReportsAllBytes) {
  constexpr std::size_t kElements = 600'000;  // More than two steps of the comparison.
  std::vector<float> values(kElements, 1);
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SmallState().Floats("w", values).Save(storage, "/a")));
  values.back() = 2;
  ASSERT_TRUE(IsOk(SmallState().Floats("w", values).Save(storage, "/b")));
  std::uint64_t last = 0;
  const auto report = Diff("/a", "/b", storage, [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_EQ(total, kElements * sizeof(float));
    last = done;
  });
  ASSERT_TRUE(IsOk(report));
  ASSERT_EQ(report->differences.size(), 1U);
  EXPECT_EQ(report->differences[0].differing, 1U);
  EXPECT_EQ(last, kElements * sizeof(float));
}

TEST(Diff, NamesBothPathsInErrors) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SmallState().Floats("w", {1}).Save(storage, "/a")));
  EXPECT_TRUE(FailsWith(Diff("/a", "/b", storage), StatusCode::kNotFound, {"/b"}));
  std::stop_source stop;
  stop.request_stop();
  EXPECT_TRUE(FailsWith(Diff("/a", "/a", storage, {}, stop.get_token()), StatusCode::kCancelled,
                        {"diff /a /a"}));
}

}  // namespace
}  // namespace varve::test::diff_test
