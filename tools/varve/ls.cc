#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "json.h"
#include "text.h"
#include "varve/agent.h"
#include "varve/catalogue.h"
#include "varve/manage.h"
#include "varve/storage.h"
#include "varve/upload.h"
#include "verbs.h"

namespace varve::cli {
namespace {

constexpr const char* kHelp =
    "Lists the checkpoints in a directory, or the one that the directory is; those of other\n"
    "software (PyTorch DCP, safetensors folders) too.\n"
    "\n"
    "The state of each is one of\n"
    "  whole        loadable, as far as names, sizes and the index tell; `varve verify` reads\n"
    "               every byte\n"
    "  incomplete   saved without coordination, and files of some ranks are not there (yet); or\n"
    "               OLMo's stepN-tmp, which OLMo is writing or a dead save of it has left\n"
    "  damaged      the index or a file is missing, or not of its size; see `varve verify`\n"
    "  unreadable   this user may not read it, or the storage fails; it may be whole\n"
    "  displaced    whole, under a hidden name since an overwrite was interrupted; loads by its\n"
    "               own name, and `varve gc` gives it back\n"
    "  saving       a save is under way; of one that this node's agent has, how far it is and since\n"
    "               when, as in `varve agent status` (\"kept\": written if the trainer ends).\n"
    "               In an object store also what a save has written that died within a day\n"
    "  stale        of a dead save; `varve gc` removes it\n"
    "  failed       an asynchronous save of this name has failed, for the reason given; forgotten\n"
    "               with the next save of the name, or by `varve gc`\n"
    "  quarantined  damaged, and taken out of the way by a resume, under a hidden name, for the\n"
    "               reason given; `varve rm` removes it, renaming it brings it back\n"
    "\n"
    "A checkpoint that is pinned, or whose upload is not done, says so; no retention removes it.\n"
    "The step is the number after \"step\", \"checkpoint\", \"ckpt\" or \"iter\" in the name, else the\n"
    "only number in it.\n"
    "Reads indexes, not data: fast on checkpoints of any size.";

struct Options {
  std::string directory;
  bool json = false;
};

/// The entries, and for each of them why it is pinned.
struct Listed {
  std::vector<CheckpointEntry> entries;
  std::vector<std::optional<std::string>> pins;
};

std::string AsJson(const Listed& listed) {
  Json json = Json::array();
  for (std::size_t i = 0; i < listed.entries.size(); ++i) {
    const CheckpointEntry& entry = listed.entries[i];
    const std::optional<std::string>& pin = listed.pins[i];
    json.push_back({{"name", entry.name},
                    {"format", FormatName(entry.format)},
                    {"step", If(entry.step.has_value(), entry.step.value_or(0))},
                    {"state", StateName(entry.state)},
                    {"detail", entry.detail},
                    {"bytes", entry.bytes},
                    {"world_size", If(entry.world_size != 0, entry.world_size)},
                    {"save_id", entry.save_id ? Json(ToString(*entry.save_id)) : Json()},
                    {"pin", If(pin.has_value(), pin.value_or(""))}});
  }
  return ToLine(json);
}

Colour ColourOf(CheckpointState state) {
  switch (state) {
    case CheckpointState::kWhole: return Colour::kGood;
    case CheckpointState::kDamaged:
    case CheckpointState::kQuarantined:
    case CheckpointState::kFailed: return Colour::kBad;
    default: return Colour::kOdd;
  }
}

/// Returns the state, and what there is to say of it.
std::string StateText(const CheckpointEntry& entry, const std::optional<std::string>& pin) {
  std::string text(StateName(entry.state));
  text += entry.detail.empty() ? "" : ": " + entry.detail;
  if (pin) {
    text += pin->empty() ? ", pinned" : ", pinned: " + *pin;
  }
  return text;
}

std::string AsTable(const Listed& listed) {
  Table table({{"name"},
               {"format"},
               {"step", Table::Align::kRight},
               {"size", Table::Align::kRight},
               {"ranks", Table::Align::kRight},
               {"state"}});
  for (std::size_t i = 0; i < listed.entries.size(); ++i) {
    const CheckpointEntry& entry = listed.entries[i];
    const bool tells_ranks = entry.world_size != 0 && entry.format != Format::kSafetensors;
    table.Add(
        {entry.name, std::string(FormatName(entry.format)),
         entry.step ? std::to_string(*entry.step) : "-", FormatBytes(entry.bytes),
         tells_ranks ? std::to_string(entry.world_size) : "-", StateText(entry, listed.pins[i])},
        ColourOf(entry.state));
  }
  return table.ToString();
}

/// An agent that stands still must not keep `ls` waiting.
constexpr auto kAgentAnswers = std::chrono::seconds(1);

/// The files of one checkpoint that this node's agent has and that are not written yet.
struct WithAgent {
  std::size_t files = 0;
  std::uint64_t bytes = 0;
  std::string state;
  double seconds = 0;
};

/// Returns them by the checkpoint's name; none where no agent runs, or it does not answer.
std::map<std::string, WithAgent> FilesWithAgent(const std::string& directory) {
  std::map<std::string, WithAgent> found;
  std::error_code error;
  const auto here = std::filesystem::canonical(directory, error);
  const auto report = error ? Result<AgentReport>(AgentReport{}) : AgentStatus({}, kAgentAnswers);
  for (const AgentReport::File& file :
       report.ok() ? report->saves : std::vector<AgentReport::File>()) {
    const std::filesystem::path path(file.path);
    if (path.parent_path() == here) {
      WithAgent& one = found[path.filename()];
      ++one.files;
      one.bytes += file.bytes;
      if (file.seconds >= one.seconds) {
        one.state = file.state;
        one.seconds = file.seconds;
      }
    }
  }
  return found;
}

/// Adds the saves that the agent of this node has, each under the name that it will have.
void AddWhatTheAgentHas(const std::string& directory, std::vector<CheckpointEntry>* entries) {
  for (const auto& [name, has] : FilesWithAgent(directory)) {
    const std::string detail = "the agent has " + Count(has.files, "file") + ", " + has.state +
                               " for " + std::to_string(std::llround(has.seconds)) + " s";
    CheckpointEntry entry;
    entry.name = name;
    entry.state = CheckpointState::kSaving;
    entry.bytes = has.bytes;
    entry.detail = detail;
    entries->push_back(std::move(entry));
  }
}

/// Says of checkpoints whose upload is pending where they are to go.
Status SayWhatIsToBeUploaded(const std::string& directory, std::vector<CheckpointEntry>* entries) {
  VARVE_ASSIGN_OR_RETURN(const auto pending, ListPendingUploads(directory));
  for (const PendingUpload& upload : pending) {
    for (CheckpointEntry& entry : *entries) {
      if (entry.name == BaseName(upload.path) && entry.state == CheckpointState::kWhole) {
        entry.detail = "its upload to " + upload.to + " is pending";
      }
    }
  }
  return Status::Ok();
}

/// Returns the pins of the checkpoints, in their order. Of one that the directory itself is, the
/// pin is in the directory.
Result<std::vector<std::optional<std::string>>> PinsOf(
    const std::string& directory, const std::vector<CheckpointEntry>& entries) {
  std::vector<std::string> paths;
  paths.reserve(entries.size());
  for (const CheckpointEntry& entry : entries) {
    paths.push_back(JoinPath(directory, entry.name));
  }
  VARVE_ASSIGN_OR_RETURN(auto pins, ReadPins(paths));
  for (std::size_t i = 0; i < pins.size(); ++i) {
    if (!pins[i] && (pins.size() == 1 || directory.ends_with(entries[i].name))) {
      VARVE_ASSIGN_OR_RETURN(const auto own, ReadPins({directory}));
      pins[i] = own.front();
    }
    // The checkpoint of the name of a failed save is another entry; in a directory that may not be
    // read, whether there is a pin is not known.
    if (entries[i].state == CheckpointState::kFailed ||
        entries[i].state == CheckpointState::kUnreadable) {
      pins[i].reset();
    }
  }
  return pins;
}

Result<Outcome> Run(const Options& options) {
  Listed listed;
  VARVE_ASSIGN_OR_RETURN(listed.entries, ListCheckpoints(options.directory));
  AddWhatTheAgentHas(options.directory, &listed.entries);
  VARVE_RETURN_IF_ERROR(SayWhatIsToBeUploaded(options.directory, &listed.entries));
  VARVE_ASSIGN_OR_RETURN(listed.pins, PinsOf(options.directory, listed.entries));
  if (options.json) {
    return Outcome{AsJson(listed)};
  }
  if (listed.entries.empty()) {
    return Outcome{"no checkpoints in " + Printable(options.directory) + "\n"};
  }
  return Outcome{AsTable(listed)};
}

}  // namespace

void AddLs(Command program) {
  Command verb = program.Add("ls", "List the checkpoints in a directory", kHelp);
  const auto options = std::make_shared<Options>();
  verb.Positional("DIR", &options->directory, "Directory of checkpoints, or one checkpoint");
  verb.Flag(
      "--json", &options->json,
      "A list of objects: name, format, step, state, detail, bytes, world_size, save_id, pin");
  verb.Runs([=] { return Run(*options); });
}

}  // namespace varve::cli
