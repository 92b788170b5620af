// The rules of retention: each by a sentence, and the promises that hold for any history and any
// rules, by many drawn at random.

#include <cmath>
#include <limits>
#include <set>

#include <gtest/gtest.h>

#include "support/random.h"
#include "support/status_matchers.h"
#include "varve/manage.h"

namespace varve::retention_test {
namespace {

using test::FailsWith;
using test::Random;

constexpr std::int64_t kHourNs = 3600LL * 1'000'000'000;

/// Returns whole steps 100, 200, ..., an hour apart, with these losses.
std::vector<RunStep> Steps(const std::vector<double>& losses) {
  std::vector<RunStep> steps;
  for (const double loss : losses) {
    RunStep step;
    step.step = 100 * (steps.size() + 1);
    step.name = "step-" + std::to_string(step.step);
    step.time_ns = static_cast<std::int64_t>(steps.size()) * kHourNs;
    step.metrics = {{"loss", loss}};
    steps.push_back(std::move(step));
  }
  return steps;
}

std::set<std::uint64_t> Kept(const std::vector<RunStep>& steps, const KeepRules& rules,
                             std::int64_t now = 100 * kHourNs) {
  const auto judgements = JudgeSteps(steps, rules, now);
  std::set<std::uint64_t> kept;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (judgements[i].keeps) {
      kept.insert(steps[i].step);
    }
  }
  return kept;
}

using Set = std::set<std::uint64_t>;

TEST(Retention, KeepsAllStepsWithoutARule) {
  EXPECT_EQ(Kept(Steps({1, 1, 1}), {}), (Set{100, 200, 300}));
}

TEST(Retention, KeepsTheLastN) {
  EXPECT_EQ(Kept(Steps({1, 1, 1}), {.last = 2}), (Set{200, 300}));
  EXPECT_EQ(Kept(Steps({1, 1, 1}), {.last = 1}), (Set{300}));
}

TEST(Retention, KeepsTheNewestWholeStepWhateverTheRules) {
  EXPECT_EQ(Kept(Steps({1, 1, 1}), {.last = 0}), (Set{300}));
  auto steps = Steps({1, 1, 1});
  steps[2].state = CheckpointState::kDamaged;
  const auto judgements = JudgeSteps(steps, {.last = 0}, 0);
  EXPECT_FALSE(judgements[0].keeps);
  EXPECT_EQ(judgements[1].reasons, (std::vector<std::string>{"the newest"}));
  EXPECT_EQ(judgements[2].reasons, (std::vector<std::string>{"not counted: damaged"}));
}

TEST(Retention, CountsNoStepThatIsNotWhole) {
  auto steps = Steps({1, 1, 1, 1});
  steps[3].state = CheckpointState::kIncomplete;
  EXPECT_EQ(Kept(steps, {.last = 2}), (Set{200, 300, 400}));
}

TEST(Retention, KeepsMultiplesAndOneForEachPeriod) {
  EXPECT_EQ(Kept(Steps({1, 1, 1, 1, 1}), {.every_steps = 200}), (Set{200, 400, 500}));
  EXPECT_EQ(Kept(Steps({1, 1, 1, 1, 1}), {.every_time = std::chrono::hours(2)}),
            (Set{100, 300, 500}));
  EXPECT_EQ(Kept(Steps({1, 1, 1, 1, 1}), {.newer_than = std::chrono::hours(2)}, 4 * kHourNs),
            (Set{300, 400, 500}));
}

TEST(Retention, AClockThatWasWrongOnceDoesNotSilenceAPeriod) {
  auto steps = Steps({1, 1, 1, 1, 1});
  steps[1].time_ns += 100'000 * kHourNs;
  EXPECT_EQ(Kept(steps, {.every_time = std::chrono::hours(2)}), (Set{100, 200, 300, 500}));
}

TEST(Retention, KeepsTheBestAndNeverTakesNanForBest) {
  const double nan = std::nan("");
  const auto steps = Steps({nan, 1, 5, 2, nan});
  const KeepRules lowest{.best = KeepBest{.count = 2, .metric = "loss"}};
  const KeepRules highest{.best = KeepBest{.count = 1, .metric = "loss", .highest = true}};
  const KeepRules other{.best = KeepBest{.count = 3, .metric = "accuracy"}};
  EXPECT_EQ(Kept(steps, lowest), (Set{200, 400, 500}));
  EXPECT_EQ(Kept(steps, highest), (Set{300, 500}));
  EXPECT_EQ(Kept(steps, other), (Set{500}));
}

TEST(Retention, TakesTheNewerOneOfEqualValues) {
  EXPECT_EQ(Kept(Steps({1, 1, 2}), {.best = KeepBest{.count = 1, .metric = "loss"}}),
            (Set{200, 300}));
}

TEST(Retention, KeepsPinnedSteps) {
  auto steps = Steps({1, 1, 1});
  steps[0].pin = "paper";
  EXPECT_EQ(JudgeSteps(steps, {.last = 1}, 0)[0].reasons,
            (std::vector<std::string>{"pinned: paper"}));
}

TEST(Retention, RefusesRulesThatMakeNoSense) {
  EXPECT_TRUE(FailsWith(CheckRules({.every_steps = 0}), StatusCode::kInvalidArgument));
  EXPECT_TRUE(
      FailsWith(CheckRules({.every_time = std::chrono::hours(0)}), StatusCode::kInvalidArgument));
  EXPECT_TRUE(FailsWith(CheckRules({.best = KeepBest{}}), StatusCode::kInvalidArgument));
}

/// Returns any history: any states, attempts, clocks that go back, metrics.
std::vector<RunStep> AnyHistory(Random& random) {
  std::vector<RunStep> steps(random.Below(12));
  std::uint64_t number = 0;
  for (RunStep& step : steps) {
    step.step = number += random.Below(4);
    step.name = "step-" + std::to_string(step.step);
    step.time_ns = static_cast<std::int64_t>(random.Below(40)) * kHourNs / 4;
    constexpr CheckpointState kStates[] = {CheckpointState::kWhole, CheckpointState::kWhole,
                                           CheckpointState::kDisplaced, CheckpointState::kDamaged,
                                           CheckpointState::kIncomplete};
    step.state = kStates[random.Below(std::size(kStates))];
    if (!random.OneIn(3)) {
      const double value = static_cast<double>(random.Below(4));
      step.metrics = {{"loss", random.OneIn(4)   ? std::nan("")
                               : random.OneIn(9) ? std::numeric_limits<double>::infinity()
                                                 : value}};
    }
    if (random.OneIn(6)) {
      step.pin = "";
    }
  }
  return steps;
}

KeepRules AnyRules(Random& random) {
  KeepRules rules;
  if (random.OneIn(2)) {
    rules.last = random.Below(4);
  }
  if (random.OneIn(3)) {
    rules.every_steps = random.Between(1, 5);
  }
  if (random.OneIn(3)) {
    rules.every_time = std::chrono::hours(random.Between(1, 3));
  }
  if (random.OneIn(3)) {
    rules.newer_than = std::chrono::hours(random.Below(10));
  }
  if (random.OneIn(2)) {
    rules.best = KeepBest{random.Below(4), random.OneIn(5) ? "other" : "loss", random.OneIn(2)};
  }
  return rules;
}

TEST(RetentionProperty, TheNewestWholeAndPinnedStepsStayAndASecondRunRemovesNothing) {
  for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
    Random random(seed);
    const auto steps = AnyHistory(random);
    const KeepRules rules = AnyRules(random);
    const std::int64_t now = static_cast<std::int64_t>(random.Below(12)) * kHourNs;
    const auto judgements = JudgeSteps(steps, rules, now);
    ASSERT_EQ(judgements.size(), steps.size());
    std::vector<RunStep> left;
    std::optional<std::size_t> newest;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      newest = steps[i].whole() ? i : newest;
      ASSERT_EQ(judgements[i].keeps, !judgements[i].reasons.empty()) << "seed " << seed;
      ASSERT_TRUE(judgements[i].keeps || (steps[i].whole() && !steps[i].pin)) << "seed " << seed;
      if (judgements[i].keeps) {
        left.push_back(steps[i]);
      }
    }
    ASSERT_TRUE(!newest || judgements[*newest].keeps) << "seed " << seed;
    for (const Judgement& again : JudgeSteps(left, rules, now)) {
      ASSERT_TRUE(again.keeps) << "seed " << seed;
    }
  }
}

TEST(RetentionProperty, AFurtherRuleNeverRemovesMore) {
  for (std::uint64_t seed = 0; seed < 5'000; ++seed) {
    Random random(seed);
    const auto steps = AnyHistory(random);
    KeepRules rules = AnyRules(random);
    if (!rules.any() || rules.last) {
      continue;
    }
    const auto before = JudgeSteps(steps, rules, 0);
    rules.last = random.Below(4);
    const auto after = JudgeSteps(steps, rules, 0);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      ASSERT_TRUE(after[i].keeps || !before[i].keeps) << "seed " << seed;
    }
  }
}

TEST(Interval, IsDalysOptimumWhereNothingElseLimitsIt) {
  const IntervalChoice choice =
      ChooseInterval({.stall = 8, .background = 2, .write = 60}, 24 * 3600.0, 0.05);
  EXPECT_NEAR(choice.seconds, std::sqrt(2 * 10 * 86400.0), 15);
  EXPECT_NEAR(choice.save_share, 10 / choice.seconds, 1e-9);
  EXPECT_NEAR(choice.lost_share, choice.seconds / 2 / 86400, 1e-9);
}

TEST(Interval, NeverCostsMoreThanTheShareAndIsNeverShorterThanASave) {
  for (std::uint64_t seed = 0; seed < 5'000; ++seed) {
    Random random(seed);
    const auto draw = [&] { return static_cast<double>(random.Below(10'000)) / 100; };
    const SaveCosts costs{.stall = draw(), .background = draw(), .write = draw()};
    const double share = static_cast<double>(random.Between(1, 100)) / 1000;
    const auto mtbf = random.OneIn(4) ? std::nullopt : std::optional(draw() * 100);
    const IntervalChoice choice = ChooseInterval(costs, mtbf, share);
    ASSERT_LE(choice.save_share, share * (1 + 1e-9)) << "seed " << seed;
    ASSERT_GE(choice.seconds, costs.write) << "seed " << seed;
  }
}

}  // namespace
}  // namespace varve::retention_test
