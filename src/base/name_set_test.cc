#include "base/name_set.h"

#include <string>
#include <unordered_set>
#include <vector>

#include <gtest/gtest.h>

namespace varve {
namespace {

TEST(NameSet, HoldsWhatWasInsertedAndNothingElse) {
  std::vector<std::string> names;
  for (int i = 0; i < 5000; ++i) {
    names.push_back("layers." + std::to_string(i % 3000));
  }
  for (const std::size_t expected : {0U, 100U, 5000U}) {
    NameSet set(expected);
    std::unordered_set<std::string> other;
    for (const std::string& name : names) {
      EXPECT_EQ(set.Contains(name), other.contains(name)) << name;
      EXPECT_EQ(set.Insert(name), other.insert(name).second) << name;
      EXPECT_TRUE(set.Contains(name)) << name;
    }
    EXPECT_EQ(set.size(), 3000U);
    EXPECT_FALSE(set.Contains("layers.3000"));
  }
}

TEST(NameSet, TakesTheEmptyName) {
  NameSet set;
  EXPECT_FALSE(set.Contains(""));
  EXPECT_TRUE(set.Insert(""));
  EXPECT_FALSE(set.Insert(""));
  EXPECT_TRUE(set.Contains(""));
}

}  // namespace
}  // namespace varve
