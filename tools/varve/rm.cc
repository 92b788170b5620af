#include <memory>

#include "json.h"
#include "text.h"
#include "varve/catalogue.h"
#include "verbs.h"

namespace varve::cli {
namespace {

constexpr const char* kHelp =
    "Removes a checkpoint: its directory with all that is in it, also files that varve has not\n"
    "written, which it lists. The directory loses its name first, so that no reader ever sees half a\n"
    "checkpoint; if the removal is interrupted, `varve gc` finishes it. Refuses what is not a\n"
    "checkpoint, and one that is being saved or is pinned. If the path is a symbolic link, only\n"
    "the link is removed.";

struct Options {
  std::string path;
  bool dry_run = false;
  bool json = false;
};

Result<Outcome> Run(const Options& options, const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(
      const RemovalReport report,
      RemoveCheckpoint(options.path, options.dry_run ? DryRun::kYes : DryRun::kNo, AnyStorage(),
                       stop));
  if (options.json) {
    return Outcome{ToLine({{"checkpoint", options.path},
                           {"dry_run", options.dry_run},
                           {"bytes", report.bytes},
                           {"others", report.others}})};
  }
  std::string text;
  const std::string did = options.dry_run ? "would remove " : "removed ";
  for (const std::string& name : report.others) {
    text += did + Printable(name) + ", which is not part of the checkpoint\n";
  }
  return Outcome{text + did + Printable(options.path) + ", " + FormatBytes(report.bytes) + "\n"};
}

}  // namespace

void AddRm(Command program) {
  Command verb = program.Add("rm", "Remove a checkpoint, with all that is in its directory", kHelp);
  const auto options = std::make_shared<Options>();
  verb.Positional("CKPT", &options->path, "A checkpoint directory");
  verb.Flag("--dry-run", &options->dry_run, "Say what would be removed, and remove nothing");
  verb.Flag("--json", &options->json,
            "An object: checkpoint, dry_run, bytes, others (files that were not part of it)");
  verb.RunsUntilStopped([=](const std::stop_token& stop) { return Run(*options, stop); });
}

}  // namespace varve::cli
