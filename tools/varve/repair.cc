#include <memory>

#include "json.h"
#include "text.h"
#include "varve/catalogue.h"
#include "verbs.h"

namespace varve::cli {
namespace {

constexpr const char* kHelp =
    "Rebuilds the index (manifest.bin and varve.json) of a checkpoint from the headers of its\n"
    "data files, byte for byte as this version saves it. Also turns a complete set of files that\n"
    "ranks have saved without coordination into a committed checkpoint.\n"
    "\n"
    "Data is neither read nor changed: `varve verify` tells whether it is sound. Refuses when a\n"
    "header is damaged (exit code 1) or when files of some ranks are missing (exit code 2).";

struct Options {
  std::string path;
  bool json = false;
};

Result<Outcome> Run(const Options& options, const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const RepairReport report, Repair(options.path, AnyStorage(), stop));
  if (options.json) {
    return Outcome{ToLine({{"checkpoint", options.path},
                           {"save_id", ToString(report.save_id)},
                           {"files", report.file_count},
                           {"changed", report.changed}})};
  }
  const std::string files = Count(report.file_count, "data file");
  return Outcome{Printable(options.path) + ": " +
                 (report.changed ? "rebuilt the index from " + files
                                 : "the index matches " + files +
                                       "; nothing to do (data were not read: see varve verify)") +
                 " (save " + ToString(report.save_id) + ")\n"};
}

}  // namespace

void AddRepair(Command program) {
  Command verb = program.Add("repair", "Rebuild a lost or damaged index", kHelp);
  const auto options = std::make_shared<Options>();
  verb.Positional("CKPT", &options->path, "A checkpoint directory");
  verb.Flag("--json", &options->json, "An object: checkpoint, save_id, files, changed");
  verb.RunsUntilStopped([=](const std::stop_token& stop) { return Run(*options, stop); });
}

}  // namespace varve::cli
