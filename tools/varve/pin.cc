#include <memory>
#include <string>

#include "text.h"
#include "varve/manage.h"
#include "verbs.h"

namespace varve::cli {
namespace {

constexpr const char* kPinHelp =
    "Keeps a step from being removed by `varve prune` and by the rules of a manager, until it is\n"
    "unpinned. The pin is a file in the checkpoint's directory (varve-pinned.txt) and moves with\n"
    "it. `varve rm` and saves that would replace a pinned checkpoint refuse.";
constexpr const char* kUnpinHelp =
    "Takes the pin of a checkpoint away. Says so where it has none, and exits with 0 then too.";

struct Options {
  std::string path;
  std::string why;
};

}  // namespace

void AddPin(Command program) {
  Command verb = program.Add("pin", "Keep a step from being pruned", kPinHelp);
  const auto options = std::make_shared<Options>();
  verb.Positional("CKPT", &options->path, "A checkpoint directory");
  verb.Option("--why", "TEXT", &options->why, "The reason, which `varve prune` shows");
  verb.Runs([=]() -> Result<Outcome> {
    VARVE_RETURN_IF_ERROR(PinCheckpoint(options->path, options->why));
    return Outcome{"pinned " + Printable(options->path) + "\n"};
  });
}

void AddUnpin(Command program) {
  Command verb = program.Add("unpin", "Take the pin of a step away", kUnpinHelp);
  const auto options = std::make_shared<Options>();
  verb.Positional("CKPT", &options->path, "A checkpoint directory");
  verb.Runs([=]() -> Result<Outcome> {
    VARVE_ASSIGN_OR_RETURN(const auto pins, ReadPins({options->path}));
    VARVE_RETURN_IF_ERROR(UnpinCheckpoint(options->path));
    return Outcome{pins.front() ? "unpinned " + Printable(options->path) + "\n"
                                : Printable(options->path) + " is not pinned\n"};
  });
}

}  // namespace varve::cli
