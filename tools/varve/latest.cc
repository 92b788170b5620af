#include <memory>

#include "text.h"
#include "varve/catalogue.h"
#include "varve/manage.h"
#include "varve/storage.h"
#include "verbs.h"

namespace varve::cli {
namespace {

constexpr const char* kHelp =
    "Prints the path of the newest whole checkpoint in a directory, from which a manager resumes:\n"
    "that with the highest step, or where no name has a step, that written last. What a job has\n"
    "saved that went on from an older step is newer than what it left behind. Indexes and sizes\n"
    "are checked; `varve verify` checks all bytes. Newer steps that are not whole are named on\n"
    "the error output. Exit code 1 when there is none.";

struct Options {
  std::string directory;
};

/// Returns which newer steps are not whole, and why.
Result<std::string> PassedOver(const std::string& directory, const std::string& newest) {
  VARVE_ASSIGN_OR_RETURN(const auto steps, ListSteps(directory));
  std::string text;
  for (auto step = steps.rbegin(); step != steps.rend() && step->name != BaseName(newest); ++step) {
    text += text.empty() ? "" : "; ";
    text += "passed over " + Printable(step->name) + ": it is " +
            std::string(StateName(step->state)) + ": " + Printable(step->detail);
  }
  return text;
}

Result<Outcome> Run(const Options& options) {
  const auto newest = NewestCheckpoint(options.directory);
  if (newest.status().code() == StatusCode::kNotFound) {
    return Outcome{.text = "", .exit_code = kExitNone, .complaint = newest.status().message()};
  }
  VARVE_RETURN_IF_ERROR(newest.status());
  VARVE_ASSIGN_OR_RETURN(const std::string directory, ResolvePath(options.directory));
  VARVE_ASSIGN_OR_RETURN(const std::string newer,
                         *newest == directory ? std::string() : PassedOver(directory, *newest));
  return Outcome{.text = *newest + "\n", .complaint = newer};
}

}  // namespace

void AddLatest(Command program) {
  Command verb = program.Add("latest", "Print the newest whole checkpoint", kHelp);
  const auto options = std::make_shared<Options>();
  verb.Positional("DIR", &options->directory, "Directory of checkpoints");
  verb.Runs([=] { return Run(*options); });
}

}  // namespace varve::cli
