#include <memory>

#include "text.h"
#include "varve/catalogue.h"
#include "varve/manage.h"
#include "verbs.h"

namespace varve::cli {
namespace {

constexpr const char* kHelp =
    "Prints the path of the newest whole checkpoint in a directory, from which a manager resumes:\n"
    "that with the highest step, or where no name has a step, that written last. What a job has\n"
    "saved that went on from an older step is newer than what it left behind. Indexes and sizes\n"
    "are checked; `varve verify` checks all bytes. Exit code 1 when there is none.";

struct Options {
  std::string directory;
};

Result<Outcome> Run(const Options& options) {
  const auto newest = NewestCheckpoint(options.directory);
  if (newest.status().code() == StatusCode::kNotFound) {
    return Outcome{.text = "", .exit_code = kExitNone, .complaint = newest.status().message()};
  }
  VARVE_RETURN_IF_ERROR(newest.status());
  return Outcome{*newest + "\n"};
}

}  // namespace

void AddLatest(Command program) {
  Command verb = program.Add("latest", "Print the newest whole checkpoint", kHelp);
  const auto options = std::make_shared<Options>();
  verb.Positional("DIR", &options->directory, "Directory of checkpoints");
  verb.Runs([=] { return Run(*options); });
}

}  // namespace varve::cli
