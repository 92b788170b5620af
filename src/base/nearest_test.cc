#include "base/nearest.h"

#include <gtest/gtest.h>

namespace varve {
namespace {

const std::vector<std::string> kNames = {"model.layers.0.weight", "model.layers.1.bias",
                                         "optimizer.step"};

TEST(Nearest, FindsANameWithAThirdOfItsLettersWrongAtMost) {
  EXPECT_EQ(Nearest("optimzier.step", kNames), "optimizer.step");
  EXPECT_EQ(Nearest("optimizer", kNames), "optimizer.step");
  EXPECT_EQ(Nearest("scheduler.last_epoch", kNames), "");
  EXPECT_EQ(Nearest(std::string(5000, 'm'), kNames), "");
  EXPECT_EQ(Nearest("ls", {}), "");
}

TEST(Nearest, ComparesAGlobWithAsManyKeysAsItHas) {
  EXPECT_EQ(NearestToGlob("modle.*", kNames), "model.layers.0.weight");
  EXPECT_EQ(NearestToGlob("model.layer.1.*", kNames), "model.layers.1.bias");
  EXPECT_EQ(NearestToGlob("optimiser*", kNames), "optimizer.step");
  EXPECT_EQ(NearestToGlob("*", kNames), "");
  EXPECT_EQ(NearestToGlob("scheduler.*", kNames), "");
}

}  // namespace
}  // namespace varve
