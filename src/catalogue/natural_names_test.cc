#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "catalogue/names.h"
#include "varve/catalogue.h"

namespace varve::natural_names_test {
namespace {

TEST(StepFromName, IsTheNumberAfterAWordForIt) {
  EXPECT_EQ(StepFromName("step-00001000"), 1000U);
  EXPECT_EQ(StepFromName("step1000"), 1000U);
  EXPECT_EQ(StepFromName("global_step120"), 120U);
  EXPECT_EQ(StepFromName("checkpoint-500"), 500U);
  EXPECT_EQ(StepFromName("epoch=3-step=4000"), 4000U);
  EXPECT_EQ(StepFromName("epoch=3-step=4000-v1.ckpt"), 4000U);
  EXPECT_EQ(StepFromName("Step_7_of_run_12"), 7U);
  EXPECT_EQ(StepFromName("2026-11-22_step_5"), 5U);
  EXPECT_EQ(StepFromName("iter_0000100"), 100U);
  EXPECT_EQ(StepFromName("step-100-ws2"), 100U);
}

TEST(StepFromName, IsTheOnlyNumberWhereThereIsNoWord) {
  EXPECT_EQ(StepFromName("1000"), 1000U);
  EXPECT_EQ(StepFromName("run_a-1000.pt"), 1000U);
  EXPECT_EQ(StepFromName("model-1000-ws2"), 1000U);
}

TEST(StepFromName, IsNothingWhereNumbersAreSomethingElse) {
  for (const std::string name :
       {"best", "ws2", "llama-7b", "loss-1.5", "v1.2.3", "2026-11-22", "run-20261122", "a1b2c3d4",
        "9f3e", "model-00001-of-00002", "step", "step-1.5", "99999999999999999999999"}) {
    EXPECT_EQ(StepFromName(name), std::nullopt) << name;
  }
}

TEST(NaturalLess, OrdersNumbersInNamesByValue) {
  const std::vector<std::string> ordered = {"",           "a",           "layers.1.w", "layers.2",
                                            "layers.2.w", "layers.10.w", "layers.a",   "step-09",
                                            "step-9",     "step-10",     "step-x"};
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    for (std::size_t j = 0; j < ordered.size(); ++j) {
      EXPECT_EQ(NaturalLess(ordered[i], ordered[j]), i < j) << ordered[i] << " " << ordered[j];
    }
  }
}

}  // namespace
}  // namespace varve::natural_names_test
