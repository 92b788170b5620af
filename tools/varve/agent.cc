#include "varve/agent.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>

#include <sys/stat.h>
#include <unistd.h>

#include "json.h"
#include "text.h"
#include "verbs.h"

namespace varve::cli {
namespace {

constexpr const char* kHelp =
    "The agent writes the checkpoints that trainers of this user submit to it on this node, also\n"
    "when they are killed, and keeps in memory what they saved last. Trainers start it when they\n"
    "need it; it ends itself when it has had nothing to do for a while.\n"
    "\n"
    "It listens in $VARVE_AGENT_DIR, or $XDG_RUNTIME_DIR/varve if that directory is there, or\n"
    "/tmp/varve-UID.";
constexpr const char* kStatusHelp = "Exits with 0 also when no agent runs.";
constexpr const char* kDrainHelp =
    "To be called before the newest checkpoint is looked for, when a trainer was killed: what it had\n"
    "submitted may still be on its way. Done at once when no agent runs.";
constexpr const char* kStopHelp =
    "Waits as drain does. What the agent keeps in memory goes; checkpoints stay. Trainers that save\n"
    "again start another one.";

constexpr const char* kLogHelp =
    "Prints what agents have written to agent.log, and before that to agent.log.1: a line for each\n"
    "thing that happened, with time, level, rank, checkpoint and the trainer's process. The agent begins\n"
    "another file at 1 MiB and keeps one old one. Works also when no agent runs.";

struct Options {
  std::string directory;
  double timeout = 1800;
  bool json = false;

  [[nodiscard]] std::string DirectoryNamed() const {
    return directory.empty() ? DefaultAgentDirectory() : directory;
  }

  [[nodiscard]] std::chrono::milliseconds limit() const {
    constexpr double kForEver = 1e9;  // 31 years: may be added to a time without overflow.
    return std::chrono::milliseconds(static_cast<std::int64_t>(std::min(timeout, kForEver) * 1000));
  }
};

Json FilesOf(const std::vector<AgentReport::File>& files) {
  Json listed = Json::array();
  for (const AgentReport::File& file : files) {
    listed.push_back({{"path", file.path},
                      {"rank", file.rank},
                      {"bytes", file.bytes},
                      {"state", file.state},
                      {"seconds", file.seconds},
                      {"trainer_lives", file.trainer_lives}});
  }
  return listed;
}

std::string AsJson(const AgentReport* report) {
  Json json{{"running", report != nullptr}};
  if (report != nullptr) {
    json["version"] = report->version;
    json["pid"] = report->pid;
    json["stopping"] = report->stopping;
    json["trainers"] = report->trainers;
    json["saves"] = FilesOf(report->saves);
    json["held"] = FilesOf(report->held);
  }
  return ToLine(json);
}

/// Names the directory: in another one an agent may be at work.
std::string NoAgent(const Options& options) {
  return "no agent runs in " + Printable(options.DirectoryNamed()) + "\n";
}

std::string AsLines(const AgentReport* report, const Options& options) {
  if (report == nullptr) {
    return NoAgent(options);
  }
  std::string text = "agent " + report->version + ", process " + std::to_string(report->pid) +
                     ", " + Count(report->trainers, "trainer") + " connected" +
                     (report->stopping ? ", stopping" : "") + "\n";
  Table table({{"state"},
               {"for", Table::Align::kRight},
               {"rank", Table::Align::kRight},
               {"size", Table::Align::kRight},
               {"trainer"},
               {"checkpoint"}});
  for (const auto* files : {&report->saves, &report->held}) {
    for (const AgentReport::File& file : *files) {
      table.Add({file.state, std::to_string(std::llround(file.seconds)) + " s",
                 std::to_string(file.rank), FormatBytes(file.bytes),
                 file.trainer_lives ? "alive" : "exited", file.path});
    }
  }
  return report->saves.empty() && report->held.empty() ? text : text + table.ToString();
}

Result<Outcome> Status(const Options& options) {
  const auto report = AgentStatus(options.directory);
  if (!report.ok() && report.status().code() != StatusCode::kNotFound) {
    return report.status();
  }
  const AgentReport* const known = report.ok() ? &*report : nullptr;
  return Outcome{options.json ? AsJson(known) : AsLines(known, options)};
}

/// Drains or stops the agent. Succeeds when none runs.
Result<Outcome> Wait(const Options& options, bool stop) {
  const varve::Status status = stop ? StopAgent(options.limit(), options.directory)
                                    : DrainAgent(options.limit(), options.directory);
  if (status.code() == StatusCode::kNotFound) {
    return Outcome{NoAgent(options)};
  }
  if (status.details().system_error == ETIMEDOUT) {
    const auto report = AgentStatus(options.directory);
    std::string text = "not everything was written when the --timeout had passed";
    for (std::size_t i = 0; report.ok() && i < report->saves.size(); ++i) {
      text += (i == 0 ? ": " : ", ") + report->saves[i].path + " (" + report->saves[i].state + ")";
    }
    return Unavailable(text + (stop ? "; the agent ends when it is" : "; the agent goes on"));
  }
  if (!status.ok()) {
    return status.Annotate("wait for the agent");
  }
  return Outcome{stop ? "the agent has ended\n" : "everything is written\n"};
}

Result<Outcome> Log(const Options& options) {
  const std::string directory = options.DirectoryNamed();
  const std::string log = directory + "/agent.log";
  std::string text;
  bool found = false;
  struct stat status{};
  for (const std::string& path : {log + ".1", log}) {
    // Another user may have made the directory, and what is in it.
    if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_uid != ::geteuid()) {
      continue;
    }
    std::ifstream file(path, std::ios::binary);
    found = found || file.is_open();
    text.append(std::istreambuf_iterator<char>(file), {});
  }
  return found ? Outcome{text} : Outcome{"no agent has run: there is no " + log + "\n"};
}

/// Adds the options that all these verbs have.
std::shared_ptr<Options> AddOptions(Command verb) {
  auto options = std::make_shared<Options>();
  verb.Option("--directory", "DIR", &options->directory, "where it listens, if elsewhere");
  return options;
}

}  // namespace

void AddAgent(Command program) {
  Command group = program.Add("agent", "Ask or tell the process that writes for trainers", kHelp);
  Command status = group.Add("status", "Say what it does", kStatusHelp);
  const auto asked = AddOptions(status);
  status.Flag("--json", &asked->json, "print JSON");
  status.Runs([asked] { return Status(*asked); });
  Command log = group.Add("log", "Print what it and those before it did", kLogHelp);
  const auto read = AddOptions(log);
  log.Runs([read] { return Log(*read); });
  for (const bool stop : {false, true}) {
    Command verb = group.Add(stop ? "stop" : "drain",
                             stop ? "End it when everything that was submitted is written"
                                  : "Wait until everything that was submitted is written",
                             stop ? kStopHelp : kDrainHelp);
    const auto options = AddOptions(verb);
    verb.Seconds("--timeout", "SECONDS", &options->timeout, "wait no longer (1800)");
    verb.Runs([options, stop] { return Wait(*options, stop); });
  }
}

}  // namespace varve::cli
