#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "json.h"
#include "keep_rules.h"
#include "text.h"
#include "varve/manage.h"
#include "verbs.h"

namespace varve::cli {
namespace {

constexpr const char* kHelp =
    "Removes the steps of a run that no rule keeps. A step is a checkpoint whose name is letters\n"
    "and a number behind them (step-1000, checkpoint-500); others are never touched. Rules:\n"
    "  last=N             the newest N\n"
    "  every=K            those whose step is a multiple of K\n"
    "  hours=H            one for each H hours, the oldest; also minutes=M\n"
    "  newer=H            those made in the last H hours\n"
    "  best=N:METRIC      the N with the lowest value of a metric; N:METRIC:max for the highest\n"
    "A step that any rule keeps stays. So do the newest whole step, pinned ones (`varve pin`), those\n"
    "that are being saved or read, and what is not whole. Where the names of steps begin\n"
    "differently (step-10, epoch-2), --name says which are meant; in a run that a manager keeps,\n"
    "what no manager has saved is not touched. A step loses its name before anything of\n"
    "it is removed; `varve gc` finishes an interrupted removal.\n"
    "\n"
    "Example: varve prune run/ --keep last=3 --keep every=1000 --keep best=2:loss --dry-run";

struct Options {
  std::string run;
  std::vector<std::string> keep;
  std::optional<std::string> prefix;
  bool dry_run = false;
  bool json = false;
};

std::string Joined(const std::vector<std::string>& reasons) {
  std::string text;
  for (const std::string& reason : reasons) {
    text += (text.empty() ? "" : ", ") + reason;
  }
  return text;
}

std::string AsJson(const std::vector<PrunedStep>& steps, bool dry_run) {
  Json listed = Json::array();
  for (const PrunedStep& step : steps) {
    listed.push_back({{"name", step.step.name},
                      {"step", step.step.step},
                      {"state", StateName(step.step.state)},
                      {"bytes", step.step.bytes},
                      {"removed", step.removed},
                      {"reasons", step.reasons}});
  }
  return ToLine({{"dry_run", dry_run}, {"steps", listed}});
}

std::string AsTable(const std::vector<PrunedStep>& steps, bool dry_run) {
  Table table({{"name"}, {"size", Table::Align::kRight}, {"outcome"}});
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;
  for (const PrunedStep& step : steps) {
    const std::string did = dry_run ? "would be removed" : "removed";
    table.Add({step.step.name, FormatBytes(step.step.bytes),
               step.removed ? did : "stays: " + Joined(step.reasons)},
              step.removed ? Colour::kOdd : Colour::kGood);
    bytes += step.removed ? step.step.bytes : 0;
    count += step.removed ? 1 : 0;
  }
  return table.ToString() + (dry_run ? "would remove " : "removed ") + Count(count, "step") + ", " +
         FormatBytes(bytes) + "\n";
}

Result<Outcome> Run(const Options& options, const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const KeepRules rules, ParseKeepRules(options.keep));
  if (!rules.any()) {
    return InvalidArgument("prune " + options.run +
                           ": give at least one rule with --keep, such as --keep last=3; without "
                           "any, all steps stay");
  }
  VARVE_ASSIGN_OR_RETURN(const auto steps,
                         PruneRun(options.run, rules,
                                  {.dry_run = options.dry_run ? DryRun::kYes : DryRun::kNo,
                                   .stop = stop,
                                   .prefix = options.prefix}));
  if (steps.empty()) {  // A name that is misspelt has no steps either.
    VARVE_ASSIGN_OR_RETURN(const std::string run, ResolvePath(options.run, AnyStorage()));
    VARVE_RETURN_IF_ERROR(AnyStorage().List(run).status().Annotate("prune " + run));
  }
  if (options.json) {
    return Outcome{AsJson(steps, options.dry_run)};
  }
  if (steps.empty()) {
    return Outcome{"no steps in " + Printable(options.run) + "\n"};
  }
  return Outcome{AsTable(steps, options.dry_run)};
}

}  // namespace

void AddPrune(Command program) {
  Command verb = program.Add("prune", "Remove the steps of a run that no rule keeps", kHelp);
  const auto options = std::make_shared<Options>();
  verb.Positional("RUN", &options->run, "Directory of checkpoints");
  verb.Repeated("--keep", "RULE", &options->keep, "A rule; may be given more than once");
  verb.Option("--name", "LETTERS", &options->prefix,
              "The letters with which the names of the steps begin, such as step-");
  verb.Flag("--dry-run", &options->dry_run, "Say what would be removed, and remove nothing");
  verb.Flag("--json", &options->json,
            "An object: dry_run, steps (name, step, state, bytes, removed, reasons)");
  verb.RunsUntilStopped([=](const std::stop_token& stop) { return Run(*options, stop); });
}

}  // namespace varve::cli
