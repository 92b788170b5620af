#include <memory>

#include "json.h"
#include "text.h"
#include "varve/catalogue.h"
#include "verbs.h"

namespace varve::cli {
namespace {

constexpr const char* kHelp =
    "Removes what dead saves have left in a directory of checkpoints: hidden staging directories,\n"
    "half-written files and locks. Never touches a checkpoint, a save that is still alive, or\n"
    "anything that varve has not made. A checkpoint that an interrupted overwrite has displaced\n"
    "gets its name back. Files that a user put beside a checkpoint while it was overwritten are\n"
    "moved to the directory that has its name; one whose name is taken there stays and is listed.\n"
    "\n"
    "OLMo writes a checkpoint stepN under the name stepN-tmp (stepN-unsharded-tmp). One that a dead\n"
    "save has left is removed too, a day after its last change, if every file in it has a name that\n"
    "OLMo gives and config.yaml, which OLMo writes last, is missing. With anything else it stays.\n"
    "\n"
    "It is never needed for correctness: stale files are invisible to loads, and the next save of the\n"
    "same name removes them.";

struct Options {
  std::string directory;
  bool dry_run = false;
  bool json = false;
};

std::string AsJson(const Options& options, const GarbageReport& report) {
  return ToLine({{"dry_run", options.dry_run},
                 {"removed", report.removed},
                 {"recovered", report.recovered},
                 {"kept", report.kept},
                 {"conflicts", report.conflicts},
                 {"bytes", report.bytes}});
}

std::string AsLines(const Options& options, const GarbageReport& report) {
  std::string text;
  const auto lines = [&](const std::vector<std::string>& paths, const std::string& before,
                         const std::string& after) {
    for (const std::string& path : paths) {
      text += before;
      text += Printable(path) + after + "\n";
    }
  };
  const std::string would = options.dry_run ? "would " : "";
  const std::string past = options.dry_run ? "" : "d";
  lines(report.recovered, would + "recover" + (options.dry_run ? "" : "ed") + " ", "");
  lines(report.removed, would + "remove" + past + " ", "");
  lines(report.kept, "kept ",
        ": it is in use, or less than a day old where there are no locks, or its name holds files "
        "but "
        "no checkpoint");
  lines(report.conflicts, "kept ", ": varve did not make it, and its place is taken");
  if (report.removed.empty() && report.recovered.empty()) {
    return text + "nothing to remove\n";
  }
  const std::string done = options.dry_run ? " to free" : " freed";
  return text + Count(report.removed.size(), "stale path") + ", " + FormatBytes(report.bytes) +
         done + "\n";
}

Result<Outcome> Run(const Options& options, const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(
      const GarbageReport report,
      CollectGarbage(options.directory, options.dry_run ? DryRun::kYes : DryRun::kNo, AnyStorage(),
                     stop));
  return Outcome{options.json ? AsJson(options, report) : AsLines(options, report)};
}

}  // namespace

void AddGc(Command program) {
  Command verb = program.Add("gc", "Remove what dead saves have left", kHelp);
  const auto options = std::make_shared<Options>();
  verb.Positional("DIR", &options->directory, "Directory of checkpoints");
  verb.Flag("--dry-run", &options->dry_run, "Say what would be removed, and remove nothing");
  verb.Flag("--json", &options->json,
            "An object: dry_run, removed, recovered, kept, conflicts (paths), bytes");
  verb.RunsUntilStopped([=](const std::stop_token& stop) { return Run(*options, stop); });
}

}  // namespace varve::cli
