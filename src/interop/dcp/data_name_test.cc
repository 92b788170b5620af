#include "interop/dcp/data_name.h"

#include <gtest/gtest.h>

namespace varve::data_name_test {
namespace {

TEST(DcpDataName, ComesBackFromItsText) {
  EXPECT_EQ(ToString(DcpDataName{.rank = 12, .number = 3}), "__12_3.distcp");
  const auto parsed = ParseDcpDataName("__12_3.distcp");
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->rank, 12U);
  EXPECT_EQ(parsed->number, 3U);
}

TEST(DcpDataName, OtherNamesAreNone) {
  for (const char* name :
       {"", "__", "__1", "__1_.distcp", "___1.distcp", "__-1_0.distcp", "__1_0.distcp.tmp",
        "__1_0_0.distcp", "__1_0", "a/__1_0.distcp", "__1.metadata", "__0x1_0.distcp",
        "__18446744073709551615_0.distcp", "__99999999999999999999_0.distcp", "1_0.distcp"}) {
    EXPECT_FALSE(ParseDcpDataName(name).has_value()) << name;
  }
}

}  // namespace
}  // namespace varve::data_name_test
