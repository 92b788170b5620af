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
    "ranks have saved without coordination into a committed checkpoint. Where varve.json is lost,\n"
    "the checkpoint has no side files afterwards but a manager's note of the step; those beside it\n"
    "are named.\n"
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
                           {"changed", report.changed},
                           {"others", report.others}})};
  }
  const std::string files = Count(report.file_count, "data file");
  std::string others;
  for (const std::string& name : report.others) {
    others += others.empty() ? "varve.json, which names the side files, was lost; no part of the "
                               "checkpoint now, but may have been: "
                             : ", ";
    others += Printable(name);
  }
  return Outcome{
      .text = Printable(options.path) + ": " +
              (report.changed ? "rebuilt the index from " + files
                              : "the index matches " + files +
                                    "; nothing to do (data were not read: see varve verify)") +
              " (save " + ToString(report.save_id) + ")\n",
      .complaint = others};
}

}  // namespace

void AddRepair(Command program) {
  Command verb = program.Add("repair", "Rebuild a lost or damaged index", kHelp);
  const auto options = std::make_shared<Options>();
  verb.Positional("CKPT", &options->path, "A checkpoint directory");
  verb.Flag("--json", &options->json, "An object: checkpoint, save_id, files, changed, others");
  verb.RunsUntilStopped([=](const std::stop_token& stop) { return Run(*options, stop); });
}

}  // namespace varve::cli
