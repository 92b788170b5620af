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

TEST(FitsName, TakesDigitsAndPartsOfNames) {
  EXPECT_TRUE(FitsName("rank#.pt", "rank12.pt"));
  EXPECT_FALSE(FitsName("rank#.pt", "rank.pt"));
  EXPECT_FALSE(FitsName("rank#.pt", "rank1x.pt"));
  EXPECT_FALSE(FitsName("rank#.pt", "rank1.pt.bak"));
  EXPECT_TRUE(FitsName("PART_###.pt", "PART_1000.pt"));
  EXPECT_FALSE(FitsName("PART_###.pt", "PART_00.pt"));
  EXPECT_TRUE(FitsName("data-#-of-#-%.safetensors", "data-0-of-2-00ff.safetensors"));
  EXPECT_FALSE(FitsName("data-#-of-#-%.safetensors", "data-0-of-2-xy.safetensors"));
  EXPECT_TRUE(FitsName("a/*.distcp", "a/.distcp.distcp"));
  EXPECT_FALSE(FitsName("a/*.distcp", "a/b/c.distcp"));
  EXPECT_FALSE(FitsName("*.distcp", "a/c.distcp")) << "a part of a name has no folder in it";
}

}  // namespace
}  // namespace varve::test::names_test
