// The rules by which steps of a run are kept. Each rule chooses among the whole steps, from the
// oldest to the newest, in a way that does not change when steps that it has not chosen disappear:
// so a second run of the same rules removes nothing more.

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "varve/manage.h"

namespace varve {
namespace {

/// The indexes of some steps.
using Places = std::vector<std::size_t>;

Places WholeOnes(std::span<const RunStep> steps) {
  Places whole;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].whole()) {
      whole.push_back(i);
    }
  }
  return whole;
}

/// Returns one step for each `period` of seconds: the oldest, then each time the first that was
/// made so much later than the one before.
Places OneForEach(std::span<const RunStep> steps, const Places& whole,
                  std::chrono::milliseconds period) {
  Places chosen;
  std::int64_t next = 0;
  for (const std::size_t i : whole) {
    // A clock that goes back begins a new period: else one wrong time would silence the rule.
    if (chosen.empty() || steps[i].time_ns >= next ||
        steps[i].time_ns < steps[chosen.back()].time_ns) {
      chosen.push_back(i);
      next = steps[i].time_ns + std::chrono::nanoseconds(period).count();
    }
  }
  return chosen;
}

std::optional<double> MetricOf(const RunStep& step, const std::string& name) {
  for (const auto& [its_name, value] : step.metrics) {
    if (its_name == name) {
      return std::isnan(value) ? std::nullopt : std::optional(value);
    }
  }
  return std::nullopt;
}

Places Best(std::span<const RunStep> steps, const Places& whole, const KeepBest& rule) {
  Places chosen;
  for (const std::size_t i : whole) {
    if (MetricOf(steps[i], rule.metric)) {
      chosen.push_back(i);
    }
  }
  std::sort(chosen.begin(), chosen.end(), [&](std::size_t a, std::size_t b) {
    const double of_a = *MetricOf(steps[a], rule.metric);
    const double of_b = *MetricOf(steps[b], rule.metric);
    if (of_a != of_b) {
      return rule.highest ? of_a > of_b : of_a < of_b;
    }
    return a > b;  // The newer one.
  });
  chosen.resize(std::min<std::size_t>(chosen.size(), rule.count));
  return chosen;
}

/// Returns "500 ms", "90 s", "20 min", "6 h".
std::string TimeText(std::chrono::milliseconds time) {
  constexpr std::int64_t kSecond = 1000;
  constexpr std::int64_t kMinute = 60 * kSecond;
  constexpr std::int64_t kHour = 60 * kMinute;
  for (const auto& [unit, name] : {std::pair{kHour, " h"}, {kMinute, " min"}, {kSecond, " s"}}) {
    if (time.count() % unit == 0) {
      return std::to_string(time.count() / unit) + name;
    }
  }
  return std::to_string(time.count()) + " ms";
}

}  // namespace

Status CheckRules(const KeepRules& rules) {
  if (rules.last && *rules.last == 0) {
    return InvalidArgument("keep: the last 0 steps makes no sense; want a number from 1 on");
  }
  if (rules.best && rules.best->count == 0) {
    return InvalidArgument("keep: the best 0 steps makes no sense; want a number from 1 on");
  }
  if (rules.every_steps && *rules.every_steps == 0) {
    return InvalidArgument("keep: every 0 steps makes no sense; want a number from 1 on");
  }
  if (rules.every_time && rules.every_time->count() <= 0) {
    return InvalidArgument("keep: one for each 0 seconds makes no sense; want a time above 0");
  }
  if (rules.newer_than && rules.newer_than->count() < 0) {
    return InvalidArgument("keep: a negative age makes no sense");
  }
  if (rules.best && rules.best->metric.empty()) {
    return InvalidArgument("keep: the best by which metric? It needs a name");
  }
  return Status::Ok();
}

std::vector<Judgement> JudgeSteps(std::span<const RunStep> steps, const KeepRules& rules,
                                  std::int64_t now_ns) {
  std::vector<Judgement> judgements(steps.size());
  const Places whole = WholeOnes(steps);
  const auto keep = [&](const Places& places, const std::string& reason) {
    for (const std::size_t i : places) {
      judgements[i].reasons.push_back(reason);
    }
  };
  if (!whole.empty()) {
    keep({whole.back()}, "the newest");
  }
  if (!rules.any()) {
    keep(whole, "no rule");
  }
  if (rules.last) {
    const auto count = std::min<std::size_t>(whole.size(), *rules.last);
    keep(Places(whole.end() - static_cast<std::ptrdiff_t>(count), whole.end()),
         "last " + std::to_string(*rules.last));
  }
  if (rules.every_steps) {
    Places chosen;
    std::copy_if(whole.begin(), whole.end(), std::back_inserter(chosen),
                 [&](std::size_t i) { return steps[i].step % *rules.every_steps == 0; });
    keep(chosen, "every " + std::to_string(*rules.every_steps) + " steps");
  }
  if (rules.every_time) {
    keep(OneForEach(steps, whole, *rules.every_time), "every " + TimeText(*rules.every_time));
  }
  if (rules.newer_than) {
    const std::int64_t since = now_ns - std::chrono::nanoseconds(*rules.newer_than).count();
    Places chosen;
    std::copy_if(whole.begin(), whole.end(), std::back_inserter(chosen),
                 [&](std::size_t i) { return steps[i].time_ns >= since; });
    keep(chosen, "newer than " + TimeText(*rules.newer_than));
  }
  if (rules.best) {
    keep(Best(steps, whole, *rules.best),
         "best " + std::to_string(rules.best->count) + " by " + rules.best->metric);
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].pin) {
      judgements[i].reasons.push_back(steps[i].pin->empty() ? "pinned"
                                                            : "pinned: " + *steps[i].pin);
    }
    if (!steps[i].whole()) {
      judgements[i].reasons.push_back("not counted: " + std::string(StateName(steps[i].state)));
    }
    judgements[i].keeps = !judgements[i].reasons.empty();
  }
  return judgements;
}

}  // namespace varve
