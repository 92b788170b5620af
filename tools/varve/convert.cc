#include "varve/convert.h"

#include <memory>
#include <optional>

#include "conversion.h"
#include "verbs.h"

namespace varve::cli {
namespace {

constexpr const char* kHelp =
    "Writes a checkpoint of any format that Varve opens (its own, PyTorch DCP, torch.save files,\n"
    "safetensors files and folders) in another:\n"
    "  varve        a native checkpoint directory\n"
    "  dcp          a PyTorch Distributed Checkpoint that stock PyTorch opens\n"
    "  safetensors  one file; tensors only\n"
    "  hf           a folder: files of at most --shard-size and model.safetensors.index.json;\n"
    "               tensors of the model only, unless --everything or --include is given\n"
    "  torch        one file as torch.save writes it, with all values; NumPy arrays as tensors\n"
    "Nothing in the source is ever run. Tensors stream through bounded memory, checksums of the\n"
    "source are checked on the way, and DST appears whole or not at all.\n"
    "\n"
    "In a GLOB '*' is any run of characters (dots too), '?' one, '[...]' a set; quote it, or the\n"
    "shell expands it. --rename takes prefixes of names, applied after --include and --exclude; a\n"
    "converted state with renamed entries is flat.";

struct Options {
  std::string source;
  std::string target;
  std::string dtype;
  std::vector<std::string> rename;
  ConvertOptions choices;
  bool json = false;
};

Status Finish(const Options& options, ConvertOptions* choices) {
  if (!options.dtype.empty()) {
    VARVE_ASSIGN_OR_RETURN(choices->dtype, ParseDType(options.dtype));
  }
  for (const std::string& pair : options.rename) {
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos) {
      return InvalidArgument("--rename " + pair + ": want FROM=TO");
    }
    choices->rename.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
  }
  return Status::Ok();
}

Result<Outcome> Run(const Options& options, const std::stop_token& stop) {
  ConvertOptions choices = options.choices;
  VARVE_RETURN_IF_ERROR(Finish(options, &choices));
  return RunConversion("convert", options.source, options.target, std::move(choices), options.json,
                       stop, [](const auto&... given) { return Convert(given...); });
}

}  // namespace

void AddConvert(Command program) {
  Command verb = program.Add("convert", "Write a checkpoint in another format", kHelp);
  const auto options = std::make_shared<Options>();
  verb.Positional("SRC", &options->source, "A checkpoint of any format");
  verb.Positional("DST", &options->target, "The directory or file to write");
  verb.RequiredChoice("--to", "FORMAT", &options->choices.to, ConvertTargets(),
                      "varve, dcp, safetensors, hf or torch");
  verb.Option("--dtype", "TYPE", &options->dtype,
              "Cast floating-point tensors: bf16, fp16, fp32, fp64");
  verb.Size("--shard-size", "SIZE", &options->choices.shard_size,
            "Bytes of tensors in a file of a folder (default 5GB)");
  verb.Size("--memory", "SIZE", &options->choices.memory_budget,
            "Bytes of tensors in memory at once (default 1GiB, least 8MiB)");
  verb.Repeated("--include", "GLOB", &options->choices.include,
                "Only entries whose name matches; may be repeated");
  verb.Repeated("--exclude", "GLOB", &options->choices.exclude,
                "Leave out entries whose name matches; may be repeated");
  verb.Repeated("--rename", "FROM=TO", &options->rename,
                "Names that begin with FROM begin with TO instead; may be repeated");
  verb.Flag("--everything", &options->choices.everything,
            "With --to hf: all tensors, the optimizer's too");
  verb.Option("--hf-config", "DIR", &options->choices.hf_config,
              "Copy configuration and tokenizer files of DIR into the folder; with --to hf");
  verb.Flag("--overwrite", &options->choices.overwrite, "Replace DST if it exists");
  verb.Flag("--json", &options->json, "An object with what was written");
  verb.RunsUntilStopped([=](const std::stop_token& stop) { return Run(*options, stop); });
}

}  // namespace varve::cli
