// varve: the command line. Parses, runs one verb, prints, and returns the outcome as its exit code.

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <system_error>

#include <unistd.h>

#include "text.h"
#include "varve/events.h"
#include "varve/metadata.h"
#include "verbs.h"

namespace varve::cli {
namespace {

constexpr const char* kDescription =
    "Looks after checkpoints of model training that varve has written.\n"
    "\n"
    "A checkpoint is a directory: plain safetensors data files, an index (manifest.bin) and a\n"
    "commit record (varve.json) that is written last. It is visible only when whole.\n";

constexpr const char* kFooter =
    "Examples:\n"
    "  varve ls run/                       what is there, and is it whole?\n"
    "  varve latest run/                   which is the newest one that is whole?\n"
    "  varve inspect run/step-00001000     what does it hold?\n"
    "  varve verify run/step-00001000      is every byte what was written?\n"
    "  varve export run/step-00001000 model.safetensors --include 'model.*'\n"
    "\n"
    "Exit codes:\n"
    "  0  done; for verify: clean\n"
    "  1  damage was found; for latest: there is no checkpoint\n"
    "  2  wrong usage, or an error: nothing can be said about damage\n"
    "  130  ended by Ctrl-C (128 + signal); what was half written is removed\n"
    "\n"
    "Results go to standard output, errors and progress to standard error. Both are coloured on\n"
    "a terminal, unless NO_COLOR is set.\n"
    "`varve VERB --help` tells more about a verb.";

/// In the order in which --help lists them.
constexpr void (*kVerbs[])(Command) = {AddLs,     AddInspect, AddLatest, AddVerify,  AddRepair,
                                       AddGc,     AddRm,      AddPrune,  AddPin,     AddUnpin,
                                       AddAdvise, AddReport,  AddExport, AddConvert, AddUnshard,
                                       AddDiff,   AddUpload,  AddAgent};

/// Returns the engine's messages name options as callers of C++ set them; here they are flags.
std::string WithFlags(std::string message) {
  constexpr std::string_view kEngine = "pass overwrite to ";
  constexpr std::string_view kFlag = "pass --overwrite to ";
  if (const std::size_t at = message.rfind(kEngine); at != std::string::npos) {
    message.replace(at, kEngine.size(), kFlag);
  }
  return message;
}

int Fail(const std::string& message, int exit_code) {
  const std::string name = Painted("varve:", Colour::kBad, STDERR_FILENO);
  std::fputs((name + " " + Printable(WithFlags(message)) + "\n").c_str(), stderr);
  return exit_code;
}

/// Writes all of `text` to standard output. A reader that has exited (`varve ls | head -1`) has
/// what it wanted: that is success.
bool Print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      return errno == EPIPE;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

int PrintOrFail(std::string_view text, int exit_code) {
  if (Print(text)) {
    return exit_code;
  }
  return Fail("cannot write to standard output: " + std::generic_category().message(errno),
              kExitError);
}

/// Shows the engine's warnings on standard error while it lives: a server that gives no answer is
/// asked again for minutes.
class Warnings {
 public:
  Warnings() {
    const bool on_terminal = ::isatty(STDERR_FILENO) == 1;
    SetEventFunction([on_terminal](const Event& event) {
      if (event.level >= EventLevel::kWarning) {
        const std::string over_bar = on_terminal ? "\r\x1b[K" : "";  // Of the progress.
        const std::string name = Painted("varve:", Colour::kOdd, STDERR_FILENO);
        std::fputs((over_bar + name + " " + Printable(event.message) + "\n").c_str(), stderr);
      }
    });
  }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  ~Warnings() { SetEventFunction({}); }
};

int Main(int argc, char** argv) {
  // A closed pipe must not kill a repair half way; Print sees it as an error of write.
  (void)std::signal(SIGPIPE, SIG_IGN);
  (void)std::signal(SIGXFSZ, SIG_IGN);  // A file above `ulimit -f` is an error of write, too.

  Program program({.name = "varve",
                   .description = kDescription,
                   .details = kFooter,
                   .version = "varve " + std::string(Version()) + " (native format " +
                              std::to_string(kFormatVersion) + ")"});
  for (const auto add : kVerbs) {
    add(program.root());
  }

  const Result<Outcome> outcome = [&] {
    const Warnings warnings;
    return program.Run(argc, argv);
  }();
  if (!outcome.ok()) {
    const bool damage = outcome.status().code() == StatusCode::kDataLoss;
    return Fail(outcome.status().message(), damage ? kExitDamage : kExitError);
  }
  if (!outcome->complaint.empty()) {
    const int code = Fail(outcome->complaint, outcome->exit_code);
    if (outcome->text.empty()) {
      return code;
    }
  }
  return PrintOrFail(outcome->text, outcome->exit_code);
}

}  // namespace
}  // namespace varve::cli

int main(int argc, char** argv) { return varve::cli::Main(argc, argv); }
