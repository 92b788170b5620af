#include "varve/upload.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "json.h"
#include "progress.h"
#include "text.h"
#include "verbs.h"

namespace varve::cli {
namespace {

constexpr const char* kHelp =
    "Copies a checkpoint that is published to another storage, such as s3://bucket/run/step-100.\n"
    "The copy is a checkpoint of the same save, with its side files. It becomes visible when all of\n"
    "it is there; what is interrupted leaves nothing visible. Checksums that the files carry are\n"
    "compared while they are read: a damaged file is not uploaded.\n"
    "\n"
    "If DST holds the same save already, there is nothing to do. Layouts of other software have\n"
    "fixed names of files (PyTorch DCP, OLMo, Hugging Face). In an object store their old checkpoint\n"
    "cannot stay until the new one is whole: --in-place removes its index first.\n"
    "Files of the directory that are no part of the checkpoint (for a folder of Hugging Face's, what\n"
    "its Trainer keeps beside the model) are not copied, and are named.\n"
    "When it is done, the note of a pending upload from SRC to DST (see `varve ls`) is removed.";

struct Options {
  std::string source;
  std::string target;
  UploadOptions choices;
  bool overwrite = false;
  bool json = false;
};

/// Returns a line about files that are not in the copy.
std::string LeftOut(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 10;
  std::string line;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    line += (i == 0 ? "left out, for they are no part of the checkpoint: " : ", ") +
            Printable(names[i]);
  }
  if (names.size() > kShown) {
    line += " and " + std::to_string(names.size() - kShown) + " more";
  }
  return line.empty() ? line : line + "\n";
}

Result<Outcome> Run(const Options& options, const std::stop_token& stop) {
  UploadOptions choices = options.choices;
  choices.overwrite = options.overwrite ? Overwrite::kAlways : Overwrite::kNever;
  choices.stop = stop;
  Progress progress("upload", options.json);
  choices.progress = progress.function();
  VARVE_ASSIGN_OR_RETURN(const UploadReport report,
                         Upload(options.source, options.target, choices));
  progress.Finish();
  VARVE_ASSIGN_OR_RETURN(const auto pending, PendingUploadOf(options.source));
  VARVE_ASSIGN_OR_RETURN(const std::string target, ResolvePath(options.target));
  if (pending == target) {
    VARVE_RETURN_IF_ERROR(ForgetPendingUpload(options.source));
  }
  if (options.json) {
    return Outcome{ToLine({{"source", options.source},
                           {"target", options.target},
                           {"bytes", report.bytes},
                           {"files", report.files},
                           {"was_there", report.was_there},
                           {"left_out", report.left_out},
                           {"seconds", report.seconds}})};
  }
  const std::string target_name = Printable(options.target);
  if (report.was_there) {
    return Outcome{target_name + " holds this save already\n"};
  }
  return Outcome{"uploaded " + target_name + ", " + std::to_string(report.files) + " files, " +
                 BytesAndSpeed(report.bytes, report.seconds) + "\n" + LeftOut(report.left_out)};
}

}  // namespace

void AddUpload(Command program) {
  Command verb = program.Add("upload", "Copy a checkpoint to an object store", kHelp);
  const auto options = std::make_shared<Options>();
  verb.Positional("SRC", &options->source, "A checkpoint");
  verb.Positional("DST", &options->target, "Its copy's name: s3://bucket/key, or a directory");
  verb.Flag("--overwrite", &options->overwrite, "Replace another checkpoint at DST");
  verb.Flag("--in-place", &options->choices.in_place,
            "Layouts with fixed names in an object store: remove the old checkpoint first");
  verb.Flag("--json", &options->json,
            "An object: source, target, bytes, files, was_there, left_out, seconds");
  verb.RunsUntilStopped([=](const std::stop_token& stop) { return Run(*options, stop); });
}

}  // namespace varve::cli
