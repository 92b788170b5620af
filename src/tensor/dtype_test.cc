#include <set>
#include <string_view>

#include <gtest/gtest.h>

#include "varve/tensor.h"

namespace varve::dtype_test {
namespace {

TEST(DType, EveryNameIsItsOwnAndLeadsBack) {
  std::set<std::string_view> names;
  for (std::uint8_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_TRUE(names.insert(DTypeName(dtype)).second);
    EXPECT_EQ(DTypeFromName(DTypeName(dtype)), dtype);
  }
  EXPECT_EQ(DTypeFromName("float128"), std::nullopt);
  EXPECT_EQ(DTypeFromName(""), std::nullopt);
}

TEST(DType, SafetensorsNamesLeadBackAndTwoTypesHaveNone) {
  int unnamed = 0;
  for (std::uint8_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (const auto name = SafetensorsName(dtype)) {
      EXPECT_EQ(DTypeFromSafetensorsName(*name), dtype);
    } else {
      ++unnamed;
      EXPECT_TRUE(dtype == DType::kComplex32 || dtype == DType::kComplex128);
    }
  }
  EXPECT_EQ(unnamed, 2);
  EXPECT_EQ(DTypeFromSafetensorsName(""), std::nullopt);
}

// Stored numbers: changing one would misread every checkpoint.
TEST(DType, NumbersOnDiskNeverChange) {
  EXPECT_EQ(static_cast<int>(DType::kBool), 0);
  EXPECT_EQ(static_cast<int>(DType::kBFloat16), 10);
  EXPECT_EQ(static_cast<int>(DType::kFloat32), 11);
  EXPECT_EQ(static_cast<int>(DType::kComplex128), 15);
  EXPECT_EQ(static_cast<int>(DType::kFloat4E2M1FNX2), 21);
}

TEST(DType, ItemSizesAreThoseOfTheTypes) {
  EXPECT_EQ(ItemSize(DType::kBool), 1U);
  EXPECT_EQ(ItemSize(DType::kBFloat16), 2U);
  EXPECT_EQ(ItemSize(DType::kComplex32), 4U);
  EXPECT_EQ(ItemSize(DType::kFloat64), 8U);
  EXPECT_EQ(ItemSize(DType::kComplex128), 16U);
  EXPECT_EQ(ItemSize(DType::kFloat8E8M0FNU), 1U);
  EXPECT_EQ(ItemSize(DType::kFloat4E2M1FNX2), 1U);
}

}  // namespace
}  // namespace varve::dtype_test
