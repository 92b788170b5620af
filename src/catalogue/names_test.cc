#include "catalogue/names.h"

#include <string>

#include <gtest/gtest.h>

#include "support/status_matchers.h"
#include "varve/storage.h"

namespace varve::test::names_test {
namespace {

TEST(HiddenNames, HaveNoDigitsOfTheCheckpointsName) {
  EXPECT_EQ(LockPath("run/step-10"), "run/.step-%31%30.varve-lock");
  EXPECT_EQ(StagingPath("run/step-10/", SaveId{{0xab}}),
            "run/.step-%31%30.varve-saving-ab0000000000");
  EXPECT_EQ(DisplacedPath("a%31"), "./.a%25%33%31.varve-old");
}

TEST(HiddenNames, AreRecognisedWithTheNameTheyBelongTo) {
  for (const std::string name : {"step-10", "a%31", "100%", "%25", "epoch=3-step=7", "ck"}) {
    for (const std::string& path :
         {LockPath(name), DisplacedPath(name), FailedPath(name), StagingPath(name, SaveId{}),
          ChannelPath(name, SaveId{}), RemovedPath(name, SaveId{})}) {
      const auto stale = ParseStaleName(BaseName(path));
      ASSERT_TRUE(stale.has_value()) << path;
      EXPECT_EQ(stale->target, name) << path;
    }
  }
  EXPECT_EQ(ParseStaleName(".ck.varve-removed-0123456789ab")->kind, StaleKind::kRemoved);
}

TEST(HiddenNames, OfOlderVersionsAreRecognised) {
  EXPECT_EQ(ParseStaleName(".step-10.varve-old")->target, "step-10");
  EXPECT_EQ(ParseStaleName(".step-10.varve-saving-0123456789ab")->target, "step-10");
  EXPECT_EQ(BaseName(OldDisplacedPath("run/step-10")), ".step-10.varve-old");
  EXPECT_EQ(BaseName(OldLockPath("run/step-10")), ".step-10.varve-lock");
}

TEST(CheckpointName, IsRefusedWhereItCannotBeMadeOrLooksHidden) {
  for (const char* name : {"", ".", "..", "ck/.", "ck/..", "/", "run/.step-1.varve-old",
                           ".x.varve-saving-00", "run/.ck.varve-lock/"}) {
    EXPECT_TRUE(FailsWith(CheckCheckpointName(name), StatusCode::kInvalidArgument)) << name;
  }
  for (const char* name : {"ck", "run/ck/", "run/./ck", ".hidden", "a.varve-old"}) {
    EXPECT_TRUE(IsOk(CheckCheckpointName(name))) << name;
  }
}

}  // namespace
}  // namespace varve::test::names_test
