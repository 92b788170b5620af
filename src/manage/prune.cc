#include <algorithm>
#include <set>

#include "base/name_list.h"
#include "base/stop.h"
#include "base/time_source.h"
#include "catalogue/open.h"
#include "publish/claim.h"
#include "publish/remove.h"
#include "varve/manage.h"
#include "varve/upload.h"

namespace varve {
namespace {

/// Returns why a step is none that the rules are for; empty where it is one.
std::string WhyNotCounted(const RunStep& step, const std::string& prefix, bool managed) {
  if (step.is_link) {
    return "not counted: a symbolic link";
  }
  if (StepPrefix(step.name) != prefix) {
    return "not counted: its name does not begin with \"" + prefix + "\"";
  }
  return managed && step.attempt == 0 ? "not counted: no manager has saved it" : "";
}

/// Returns the letters with which the names of the steps that count begin. Errors:
/// FailedPrecondition when there are several.
Result<std::string> PrefixOf(const std::vector<RunStep>& steps, const std::string& run) {
  std::string prefix;
  const RunStep* first = nullptr;
  for (const RunStep& step : steps) {
    if (first != nullptr && StepPrefix(step.name) != prefix) {
      return FailedPrecondition("prune " + run + ": the names of its steps begin differently (" +
                                first->name + ", " + step.name +
                                "): say which are meant by the letters that they begin with, as "
                                "--name \"" +
                                std::string(StepPrefix(first->name)) + "\"");
    }
    first = &step;
    prefix = StepPrefix(step.name);
  }
  return prefix;
}

/// Errors: FailedPrecondition for letters with which no name begins, where there are steps.
Status CheckPrefix(const std::vector<RunStep>& steps, const std::string& prefix,
                   const std::string& run) {
  const bool any = std::any_of(steps.begin(), steps.end(), [&](const RunStep& step) {
    return StepPrefix(step.name) == prefix;
  });
  return any || steps.empty()
             ? Status::Ok()
             : FailedPrecondition("prune " + run + ": no step's name is \"" + prefix +
                                  "\" and a number; there is " + steps.back().name);
}

/// Checks that the checkpoint at `path` is still the one that was judged, and neither pinned since
/// nor waiting for its upload.
Status CheckUnchanged(Storage& storage, const std::string& path,
                      const std::optional<SaveId>& judged) {
  if (const auto pin = ReadPin(storage, path)) {
    return FailedPrecondition("pinned" + (pin->empty() ? "" : ": " + *pin));
  }
  VARVE_ASSIGN_OR_RETURN(const auto to, PendingUploadOf(path, storage));
  if (to) {
    return FailedPrecondition("its upload to " + *to + " is pending");
  }
  const auto record = ReadCommitRecord(storage, path);
  if (judged && record.ok() && record->save_id != *judged) {
    return FailedPrecondition(path + " has been saved anew meanwhile");
  }
  return Status::Ok();
}

Result<RemovalReport> Remove(const std::string& path, const std::optional<SaveId>& judged,
                             const PruneOptions& options, Storage& storage) {
  return RemoveUnlessUsed(path,
                          {.dry_run = options.dry_run,
                           .busy_share = options.busy_share,
                           .stop = options.stop,
                           .still_goes = [&] { return CheckUnchanged(storage, path, judged); }},
                          storage);
}

/// Errors: FailedPrecondition for a rule for the best by a metric that no step has, where steps
/// have others: a wrong name would have the best of them removed.
Status CheckMetric(const std::vector<RunStep>& steps, const KeepRules& rules,
                   const std::string& run) {
  std::set<std::string> known;
  for (const RunStep& step : steps) {
    for (const auto& [name, value] : step.metrics) {
      known.insert(name);
    }
  }
  return !rules.best || known.empty() || known.contains(rules.best->metric)
             ? Status::Ok()
             : FailedPrecondition(
                   "prune " + run + ": no step has the metric \"" + rules.best->metric +
                   "\", by which the best are to be kept; steps have " + NameSome(known));
}

Status CheckShare(double share, const std::string& what) {
  return share > 0 && share <= 1
             ? Status::Ok()
             : InvalidArgument(what + ": want a share of the time above 0 and at most 1");
}

}  // namespace

Status RemoveStep(const std::string& given, const PruneOptions& options, Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string path, ResolveTarget(given, storage));
  VARVE_RETURN_IF_ERROR(CheckShare(options.busy_share, "remove " + path));
  return Remove(path, std::nullopt, options, storage).status();
}

Result<std::vector<PrunedStep>> PruneRun(const std::string& given, const KeepRules& rules,
                                         const PruneOptions& options, Storage& storage) {
  VARVE_RETURN_IF_ERROR(CheckRules(rules));
  VARVE_ASSIGN_OR_RETURN(std::string run, ResolveTarget(given, storage));
  run = WithoutParentNames(storage, run);
  VARVE_RETURN_IF_ERROR(CheckShare(options.busy_share, "prune " + run));
  VARVE_ASSIGN_OR_RETURN(auto steps, ListSteps(run, storage, options.stop));
  std::string prefix = options.prefix.value_or("");
  if (!options.prefix) {
    VARVE_ASSIGN_OR_RETURN(prefix, PrefixOf(steps, run));
  } else if (!options.only_managed) {
    VARVE_RETURN_IF_ERROR(CheckPrefix(steps, prefix, run));
  }
  const bool managed =
      options.only_managed ||
      std::any_of(steps.begin(), steps.end(), [](const RunStep& step) { return step.attempt > 0; });
  std::vector<PrunedStep> pruned;
  pruned.reserve(steps.size());
  std::vector<RunStep> counted;
  for (RunStep& step : steps) {
    PrunedStep one{.step = std::move(step)};
    if (std::string why = WhyNotCounted(one.step, prefix, managed); !why.empty()) {
      one.reasons.push_back(std::move(why));
    } else {
      counted.push_back(one.step);
    }
    pruned.push_back(std::move(one));
  }
  if (!options.only_managed) {
    VARVE_RETURN_IF_ERROR(CheckMetric(counted, rules, run));
  }
  auto judgements = JudgeSteps(counted, rules, TimeOfDay().count());
  std::size_t next = 0;
  for (PrunedStep& step : pruned) {
    if (!step.reasons.empty()) {
      continue;
    }
    Judgement& judgement = judgements[next++];
    step.reasons = std::move(judgement.reasons);
    if (judgement.keeps) {
      continue;
    }
    VARVE_RETURN_IF_ERROR(CheckStop(options.stop).Annotate("prune " + run));
    const auto removal = Remove(JoinPath(run, step.step.name), step.step.save_id, options, storage);
    const StatusCode code = removal.status().code();
    if (code == StatusCode::kFailedPrecondition) {
      step.reasons.push_back(removal.status().message());
    } else if (code != StatusCode::kNotFound) {  // Another process has removed it.
      VARVE_RETURN_IF_ERROR(removal.status());
    }
    step.removed = step.reasons.empty();
  }
  return pruned;
}

}  // namespace varve
