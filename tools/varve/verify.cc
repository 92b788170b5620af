#include <memory>

#include <unistd.h>

#include "json.h"
#include "progress.h"
#include "text.h"
#include "varve/catalogue.h"
#include "verbs.h"

namespace varve::cli {
namespace {

constexpr const char* kHelp =
    "Re-reads every byte of a checkpoint and compares all checksums, and the index with what the\n"
    "data files say of themselves. Of a checkpoint of other software it opens every item and compares\n"
    "the checksums that there are; notes say what has none. Each damaged stretch is printed with "
    "its file, its bytes\n"
    "[begin, end) and the tensors and values that lie there; the rest still loads.\n"
    "\n"
    "Exits with 0 when the checkpoint is clean, 1 when damage was found, 2 when it could not be\n"
    "examined (there is none, or files of some ranks are still missing).\n"
    "Where only the index is damaged, `varve repair` rebuilds it from the data files.";

struct Options {
  std::string path;
  bool json = false;
};

std::string AsJson(const Options& options, const VerifyReport& report, double seconds) {
  Json damages = Json::array();
  for (const Damage& damage : report.damages) {
    damages.push_back({{"file", If(!damage.file.empty(), damage.file)},
                       {"begin", damage.begin},
                       {"end", damage.end},
                       {"tensors", damage.tensors},
                       {"problem", damage.problem}});
  }
  return ToLine({{"checkpoint", options.path},
                 {"clean", report.clean()},
                 {"bytes_checked", report.bytes_checked},
                 {"seconds", Seconds(seconds)},
                 {"damages", std::move(damages)},
                 {"notes", report.notes}});
}

std::string DamageLine(const Damage& damage) {
  std::string line;
  if (!damage.file.empty()) {
    line += damage.file;
    if (damage.end > damage.begin) {
      line += " [" + std::to_string(damage.begin) + ", " + std::to_string(damage.end) + ")";
    }
    line += ": ";
  }
  line += damage.problem;
  // One block may hold thousands of small tensors; --json names them all.
  constexpr std::size_t kMaxNamed = 20;
  for (std::size_t i = 0; i < damage.tensors.size() && i < kMaxNamed; ++i) {
    line += (i == 0 ? "; holds " : ", ") + damage.tensors[i];
  }
  if (damage.tensors.size() > kMaxNamed) {
    line += " and " + std::to_string(damage.tensors.size() - kMaxNamed) + " more";
  }
  return Painted("damaged:", Colour::kBad, STDOUT_FILENO) + " " + Printable(line) + "\n";
}

Result<Outcome> Run(const Options& options, const std::stop_token& stop) {
  Progress progress("verify", options.json);
  const auto report = Verify(options.path, AnyStorage(), progress.function(), stop);
  const double seconds = progress.seconds();
  progress.Finish();
  VARVE_RETURN_IF_ERROR(report.status());
  const int exit_code = report->clean() ? kExitOk : kExitDamage;
  if (options.json) {
    return Outcome{AsJson(options, *report, seconds), exit_code};
  }
  std::string text;
  for (const Damage& damage : report->damages) {
    text += DamageLine(damage);
  }
  for (const std::string& note : report->notes) {
    text += "note: " + Printable(note) + "\n";
  }
  text += Printable(options.path) + ": " +
          (report->clean() ? Painted("clean", Colour::kGood, STDOUT_FILENO)
                           : Painted("damaged in " + Count(report->damages.size(), "place"),
                                     Colour::kBad, STDOUT_FILENO)) +
          ", read " + BytesAndSpeed(report->bytes_checked, seconds) + "\n";
  return Outcome{std::move(text), exit_code};
}

}  // namespace

void AddVerify(Command program) {
  Command verb = program.Add("verify", "Re-read every byte and name what is damaged", kHelp);
  const auto options = std::make_shared<Options>();
  verb.Positional("CKPT", &options->path, "A checkpoint directory");
  verb.Flag("--json", &options->json,
            "An object: checkpoint, clean, bytes_checked, seconds, damages, notes");
  verb.RunsUntilStopped([=](const std::stop_token& stop) { return Run(*options, stop); });
}

}  // namespace varve::cli
