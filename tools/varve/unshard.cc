#include <memory>

#include "conversion.h"
#include "varve/convert.h"
#include "verbs.h"

namespace varve::cli {
namespace {

constexpr const char* kHelp =
    "Writes a sharded checkpoint of any layout and world size unsharded:\n"
    "  torch        a directory with model.pt, optim.pt and train.pt, and the source's config.yaml:\n"
    "               OLMo's unsharded checkpoint\n"
    "  safetensors  one file; tensors only\n"
    "  hf           a folder: files of at most --shard-size and model.safetensors.index.json;\n"
    "               the model only\n"
    "  dcp          a PyTorch Distributed Checkpoint\n"
    "  varve        a native checkpoint\n"
    "State that belongs to one rank (train/rank1, ...) is left out; train.pt is rank 0's.\n"
    "Nothing in the source is ever run. Tensors stream through bounded memory, whatever the size and\n"
    "the number of ranks, and DST appears whole or not at all. A run that was killed goes on when it\n"
    "is called again: files of a torch directory that are whole are not written again. In an object\n"
    "store a torch directory is written anew, and --overwrite removes the old one first.";

struct Options {
  std::string source;
  std::string target;
  std::string dtype;
  UnshardOptions choices;
  bool json = false;
};

Result<Outcome> Run(const Options& options, const std::stop_token& stop) {
  UnshardOptions choices = options.choices;
  if (!options.dtype.empty()) {
    VARVE_ASSIGN_OR_RETURN(choices.dtype, ParseDType(options.dtype));
  }
  return RunConversion("unshard", options.source, options.target, std::move(choices), options.json,
                       stop, [](const auto&... given) { return Unshard(given...); });
}

}  // namespace

void AddUnshard(Command program) {
  Command verb = program.Add("unshard", "Write a sharded checkpoint as whole states", kHelp);
  const auto options = std::make_shared<Options>();
  verb.Positional("SRC", &options->source, "A checkpoint of any format");
  verb.Positional("DST", &options->target, "The directory or file to write");
  verb.Choice("--to", "FORMAT", &options->choices.to, ConvertTargets(),
              "torch (the default), safetensors, hf, dcp or varve");
  verb.Flag("--model-only", &options->choices.model_only, "Leave out optimizer and trainer");
  verb.Flag("--olmo-safetensors", &options->choices.olmo_safetensors,
            "With torch: model.safetensors and optim.safetensors, in OLMo's dialect");
  verb.Option("--dtype", "TYPE", &options->dtype,
              "Cast floating-point tensors of the model: bf16, fp16, fp32, fp64");
  verb.Size("--shard-size", "SIZE", &options->choices.shard_size,
            "Bytes of tensors in a file of a folder (default 5GB)");
  verb.Size("--memory", "SIZE", &options->choices.memory_budget,
            "Bytes of tensors in memory at once (default 1GiB, least 8MiB)");
  verb.Flag("--overwrite", &options->choices.overwrite, "Replace DST if it is a checkpoint");
  verb.Flag("--json", &options->json, "An object with what was written");
  verb.RunsUntilStopped([=](const std::stop_token& stop) { return Run(*options, stop); });
}

}  // namespace varve::cli
