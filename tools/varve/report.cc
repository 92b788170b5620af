#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <unistd.h>

#include "keep_rules.h"
#include "report_advice.h"
#include "report_data.h"
#include "report_json.h"
#include "report_page.h"
#include "text.h"
#include "varve/storage.h"
#include "verbs.h"

namespace varve::cli {
namespace {

constexpr const char* kHelp =
    "Writes a page about a run: one HTML file that needs no network and no server. It shows\n"
    "  - how long training waited for saves, how long they took, and how fast they were\n"
    "  - which part of the model takes how much space\n"
    "  - which ranks were the slowest\n"
    "  - which saves failed and why, which jobs ended how, and what was lost\n"
    "  - which steps are there and why they stay; which were removed or damaged\n"
    "  - advice: how often to save, where to look for a slow or failing node, when the disk is full\n"
    "The page is drawn from varve-history.jsonl, which a CheckpointManager writes into the run's\n"
    "directory, and from the indexes of the steps that are there. No data is read, and nothing is\n"
    "changed but the page, which is RUN/varve-report.html by default, and varve-report.html in\n"
    "the working directory for a run in an object store.\n"
    "\n"
    "Example: varve report run/ -o report.html";

struct Options {
  std::string run;
  std::string out;
  std::vector<std::string> keep;
  bool json = false;
};

Status CannotWrite(const std::string& path) {
  return Unavailable("report: write " + path + ": " + std::generic_category().message(errno));
}

bool IsInObjectStore(const std::string& path) {
  ConditionalWrites* const writes = AnyStorage().extras().conditional_writes;
  return writes != nullptr && writes->Serves(path);
}

/// Returns the name of the page where none is given.
std::string DefaultPage(const std::string& run) {
  constexpr const char* kName = "varve-report.html";
  return IsInObjectStore(run) ? kName : run + "/" + kName;
}

/// Refuses to replace a file that no report has written.
Status CheckTarget(const std::string& path) {
  if (IsInObjectStore(path) || path == "-") {
    return InvalidArgument("report: -o " + path +
                           ": the page is a file of this host; give its name, or take --json, "
                           "which is printed");
  }
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::not_found) {
    return Status::Ok();
  }
  std::string begin(kPageBegin.size(), '\0');
  if (kind == std::filesystem::file_type::regular) {
    std::ifstream file(path, std::ios::binary);
    file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  }
  if (begin != kPageBegin) {
    return AlreadyExists("report: " + path +
                         " is there and is no page of `varve report`; it stays. Choose another "
                         "name with -o");
  }
  return Status::Ok();
}

/// Writes the page under another name first, so that a reader never sees half of it.
Status WritePage(const std::string& path, const std::string& page) {
  VARVE_RETURN_IF_ERROR(CheckTarget(path));
  const std::string temporary = path + ".tmp-" + std::to_string(::getpid());
  bool written = false;
  {
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    file << page;
    file.close();
    written = file.good();
  }
  if (!written || std::rename(temporary.c_str(), path.c_str()) != 0) {
    Status failed = CannotWrite(path);
    (void)std::remove(temporary.c_str());
    return failed;
  }
  return Status::Ok();
}

Result<Outcome> Run(const Options& options, const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const KeepRules rules, ParseKeepRules(options.keep));
  VARVE_ASSIGN_OR_RETURN(const ReportData data, GatherReport(options.run, rules, stop));
  const std::string out = !options.out.empty() ? options.out
                          : options.json       ? ""
                                               : DefaultPage(options.run);
  std::string text;
  if (!out.empty()) {
    const std::string page = PageOf(ReportAsJson(data));
    VARVE_RETURN_IF_ERROR(WritePage(out, page));
    text = "wrote " + Printable(out) + ", " + FormatBytes(page.size()) + "\n";
    for (const Advice& one : AdviceFor(data)) {
      text += one.kind == Advice::Kind::kWarning ? "warning: " + Printable(one.text) + "\n" : "";
    }
  }
  return Outcome{options.json ? ToLine(ReportAsJson(data)) : text};
}

}  // namespace

void AddReport(Command program) {
  Command verb = program.Add("report", "Write a page about a run: saves, failures, advice", kHelp);
  const auto options = std::make_shared<Options>();
  verb.Positional("RUN", &options->run, "Directory of checkpoints");
  verb.Option("-o,--out", "FILE", &options->out, "The page to write; an older report is replaced");
  verb.Repeated("--keep", "RULE", &options->keep,
                "A rule as `varve prune` has it: show what it would keep");
  verb.Flag(
      "--json", &options->json,
      "An object: run, version, time, history (whether there is one), lines, unreadable, saves, "
      "stall_seconds, write_seconds, bytes_per_second, interval_seconds (count, median, p95, most, "
      "total), ran_seconds, mtbf_seconds, points (of the charts), phases, slowest_ranks, failures, "
      "jobs, steps, others (beside the steps), damaged, removed, model, no_model (why there is "
      "none), advice. No page is written without -o");
  verb.RunsUntilStopped([=](const std::stop_token& stop) { return Run(*options, stop); });
}

}  // namespace varve::cli
