#include <memory>

#include "json.h"
#include "progress.h"
#include "text.h"
#include "varve/catalogue.h"
#include "verbs.h"

namespace varve::cli {
namespace {

constexpr const char* kHelp =
    "Writes the tensors of a checkpoint, each put together from its chunks, into one safetensors\n"
    "file that any safetensors reader opens. What is read is checked on the way; memory stays\n"
    "under 256 MiB whatever the size. The file appears under its name only when it is whole.\n"
    "\n"
    "In a GLOB '*' is any run of characters (dots too), '?' one, '[...]' a set; quote it, or the\n"
    "shell expands it.\n"
    "\n"
    "Plain values (step, learning rate, ...) are left out, and so are tensors of a type that\n"
    "safetensors cannot name (complex); these are listed.";

struct Options {
  std::string path;
  std::string out;
  ExportOptions choices;
  bool json = false;
};

Result<Outcome> Run(const Options& options, const std::stop_token& stop) {
  if (options.out == "-") {
    return InvalidArgument("export to -: tensors are written to a file; give its name");
  }
  Progress progress("export", options.json);
  ExportOptions choices = options.choices;
  choices.progress = progress.function();
  choices.stop = stop;
  const auto report = ExportSafetensors(options.path, options.out, choices);
  const double seconds = progress.seconds();
  progress.Finish();
  VARVE_RETURN_IF_ERROR(report.status());
  if (options.json) {
    return Outcome{ToLine({{"checkpoint", options.path},
                           {"file", options.out},
                           {"tensors", report->tensor_count},
                           {"bytes", report->bytes},
                           {"seconds", Seconds(seconds)},
                           {"skipped", report->skipped}})};
  }
  std::string text;
  for (const std::string& fqn : report->skipped) {
    text += "skipped " + Printable(fqn) + ": safetensors has no name for its type\n";
  }
  text += Printable(options.out) + ": " + Count(report->tensor_count, "tensor") + ", " +
          BytesAndSpeed(report->bytes, seconds) + "\n";
  return Outcome{std::move(text)};
}

}  // namespace

void AddExport(Command program) {
  Command verb = program.Add("export", "Write tensors into one safetensors file", kHelp);
  const auto options = std::make_shared<Options>();
  verb.Positional("CKPT", &options->path, "A checkpoint directory");
  verb.Positional("OUT", &options->out, "The file to write");
  verb.Repeated("--include", "GLOB", &options->choices.include,
                "Only tensors whose name matches; may be repeated");
  verb.Flag("--overwrite", &options->choices.overwrite, "Replace OUT if it exists");
  verb.Flag("--json", &options->json,
            "An object: checkpoint, file, tensors, bytes, seconds, skipped");
  verb.RunsUntilStopped([=](const std::stop_token& stop) { return Run(*options, stop); });
}

}  // namespace varve::cli
