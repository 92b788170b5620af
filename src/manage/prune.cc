#include "base/stop.h"
#include "base/time_source.h"
#include "publish/remove.h"
#include "varve/manage.h"

namespace varve {

Result<std::vector<PrunedStep>> PruneRun(const std::string& given, const KeepRules& rules,
                                         const PruneOptions& options, Storage& storage) {
  VARVE_RETURN_IF_ERROR(CheckRules(rules));
  VARVE_ASSIGN_OR_RETURN(const std::string run, ResolvePath(given, storage));
  if (!(options.busy_share > 0 && options.busy_share <= 1)) {
    return InvalidArgument("prune " + run + ": want a share of the time above 0 and at most 1");
  }
  VARVE_ASSIGN_OR_RETURN(auto steps, ListSteps(run, storage, options.stop));
  auto judgements = JudgeSteps(steps, rules, TimeOfDay().count());
  std::vector<PrunedStep> pruned;
  pruned.reserve(steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    PrunedStep step{.step = std::move(steps[i]), .reasons = std::move(judgements[i].reasons)};
    if (!judgements[i].keeps) {
      VARVE_RETURN_IF_ERROR(CheckStop(options.stop).Annotate("prune " + run));
      const auto removal = RemoveUnlessUsed(
          JoinPath(run, step.step.name),
          {.dry_run = options.dry_run, .busy_share = options.busy_share, .stop = options.stop},
          storage);
      const StatusCode code = removal.status().code();
      if (code == StatusCode::kFailedPrecondition) {
        step.reasons.push_back(removal.status().message());
      } else if (code != StatusCode::kNotFound) {  // Someone else has removed it.
        VARVE_RETURN_IF_ERROR(removal.status());
      }
      step.removed = step.reasons.empty();
    }
    pruned.push_back(std::move(step));
  }
  return pruned;
}

}  // namespace varve
