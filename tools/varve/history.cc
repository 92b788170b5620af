#include "history.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "json.h"
#include "varve/manage.h"
#include "varve/step_note.h"

namespace varve::cli {
namespace {

/// A line of a manager is a few kilobytes long. Memory must not depend on what a file says.
constexpr std::size_t kMostLine = 1 << 20;
/// Longer texts of a history are cut.
constexpr std::size_t kMostText = 1000;
/// Phases of a save are seven.
constexpr std::size_t kMostPhases = 32;
/// Of times and sizes: what is above it is no measurement.
constexpr double kMostNumber = 1e18;
/// Jobs that a report tells apart; later ones count as the last of them.
constexpr std::size_t kMostJobs = 10'000;

/// Returns a number from 0 on; 0 for all else, such as "nan", null, a list or 1e300.
double NumberOr0(const Json& line, const char* name) {
  const auto at = line.find(name);
  if (at == line.end() || !at->is_number()) {
    return 0;
  }
  const auto value = at->get<double>();
  return std::isfinite(value) && value >= 0 && value <= kMostNumber ? value : 0;
}

std::optional<std::uint64_t> Whole(const Json& line, const char* name) {
  const auto at = line.find(name);
  if (at == line.end() || !at->is_number_unsigned()) {
    return std::nullopt;
  }
  return at->get<std::uint64_t>();
}

std::string Text(const Json& line, const char* name) {
  const auto at = line.find(name);
  if (at == line.end() || !at->is_string()) {
    return {};
  }
  const auto& text = at->get_ref<const std::string&>();
  return text.size() <= kMostText ? text : text.substr(0, kMostText) + " ...";
}

class Reader {
 public:
  explicit Reader(RunHistory* history) : history_(*history) {}

  void Take(const std::string& text) {
    ++history_.lines;
    const Json line = Json::parse(text, nullptr, false);
    if (line.is_discarded() || !line.is_object() || !TakeEvent(line)) {
      ++history_.unreadable;
    }
  }

  void TooLong() {
    ++history_.lines;
    ++history_.unreadable;
  }

 private:
  /// Returns false for what is no event. Those that are not known, of a later version, are events.
  bool TakeEvent(const Json& line) {
    const std::string event = Text(line, "event");
    const double time = NumberOr0(line, "time");
    if (event.empty() || time <= 0) {
      return false;
    }
    if (event == "start" || history_.jobs.empty()) {
      Start(line, time);
    }
    HistoryJob& job = history_.jobs.back();
    job.last = std::max(job.last, time);
    if (event == "save") {
      Save(line, time, &job);
    } else if (event == "load") {
      job.resumed_from = Whole(line, "step");
      job.ready = time;
    } else if (event == "end") {
      job.outcome = Text(line, "outcome");
    } else if (event == "remove") {
      history_.removed.Add(Note(line, time, ""));
    } else if (event == "quarantine" || event == "damaged") {
      history_.damaged.Add(Note(line, time, Text(line, "reason")));
    }
    return true;
  }

  void Start(const Json& line, double time) {
    if (history_.jobs.size() >= kMostJobs) {
      return;
    }
    HistoryJob job;
    job.start = job.last = time;
    job.attempt = Whole(line, "attempt").value_or(0);
    job.world_size = Whole(line, "world_size").value_or(0);
    job.host = Text(line, "host");
    history_.jobs.push_back(std::move(job));
  }

  void Save(const Json& line, double time, HistoryJob* job) {
    HistorySave save;
    save.time = time;
    save.began = NumberOr0(line, "began");
    if (save.began <= 0) {
      save.began = time;
    }
    save.step = Whole(line, "step").value_or(0);
    save.attempt = Whole(line, "attempt").value_or(0);
    save.job = static_cast<std::uint32_t>(history_.jobs.size() - 1);
    save.done = Text(line, "outcome") == "done";
    save.stall = NumberOr0(line, "stall_seconds");
    ++job->saves;
    if (save.done) {
      save.seconds = NumberOr0(line, "seconds");
      save.bytes = NumberOr0(line, "bytes");
      job->last_done = history_.saves.size();
      job->last_reason = Text(line, "reason");
      Phases(line);
    } else {
      ++job->failed;
      HistoryNote note = Note(line, time, Text(line, "error"));
      note.name = Text(line, "outcome");
      history_.failures.Add(std::move(note));
    }
    history_.saves.push_back(save);
  }

  void Phases(const Json& line) {
    const auto at = line.find("phases");
    if (at == line.end() || !at->is_object()) {
      return;
    }
    for (const auto& [name, value] : at->items()) {
      if (!value.is_object() || name.size() > kMostText ||
          (history_.phases.size() >= kMostPhases && history_.phases.count(name) == 0)) {
        continue;
      }
      HistoryPhase& phase = history_.phases[name];
      const double seconds =
          std::max(NumberOr0(value, "seconds"), NumberOr0(value, "slowest_seconds"));
      ++phase.saves;
      phase.seconds += NumberOr0(value, "seconds");
      phase.most = std::max(phase.most, seconds);
      const auto rank = Whole(value, "slowest_rank");
      if (rank &&
          (phase.slowest.size() < HistoryPhase::kMostRanks || phase.slowest.count(*rank) != 0)) {
        ++phase.slowest[*rank];
      }
    }
  }

  static HistoryNote Note(const Json& line, double time, std::string text) {
    HistoryNote note;
    note.time = time;
    note.step = Whole(line, "step").value_or(0);
    note.name = Text(line, "name");
    note.text = std::move(text);
    note.bytes = NumberOr0(line, "bytes");
    return note;
  }

  RunHistory& history_;
};

/// Gives each line of a file to `reader`.
void TakeLines(std::FILE* file, Reader* reader) {
  std::array<char, 1 << 16> block{};
  std::string line;
  bool too_long = false;
  const auto end_line = [&] {
    if (too_long) {
      reader->TooLong();
    } else if (!line.empty()) {
      reader->Take(line);
    }
    line.clear();
    too_long = false;
  };
  while (std::feof(file) == 0 && std::ferror(file) == 0) {
    const std::size_t got = std::fread(block.data(), 1, block.size(), file);
    for (std::size_t i = 0; i < got; ++i) {
      if (block.at(i) == '\n') {
        end_line();
      } else if (line.size() < kMostLine) {
        line.push_back(block.at(i));
      } else {
        too_long = true;
      }
    }
  }
  end_line();
}

struct CloseFile {
  void operator()(std::FILE* file) const { (void)std::fclose(file); }
};

}  // namespace

void HistoryNotes::Add(HistoryNote note) {
  ++count;
  bytes += note.bytes;
  if (newest.size() == kMost) {
    newest.erase(newest.begin());
  }
  newest.push_back(std::move(note));
}

Result<RunHistory> ReadHistory(const std::string& run) {
  const auto objects = ReadRunHistory(run, {});
  if (objects.status().code() != StatusCode::kUnimplemented) {
    VARVE_RETURN_IF_ERROR(objects.status().Annotate("report"));
    RunHistory history;
    history.found = !objects->empty();
    Reader reader(&history);
    for (const std::string& line : *objects) {
      reader.Take(line);
    }
    return history;
  }
  const std::string path = run + "/" + std::string(kHistoryName);
  RunHistory history;
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return history;
  }
  if (!error && !std::filesystem::is_regular_file(status)) {  // A pipe would be waited for.
    return InvalidArgument("report: open " + path + ": not a regular file");
  }
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rbe"));
  if (!file) {
    return Unavailable("report: open " + path + ": " + std::generic_category().message(errno));
  }
  history.found = true;
  Reader reader(&history);
  TakeLines(file.get(), &reader);
  if (std::ferror(file.get()) != 0) {
    return Unavailable("report: read " + path + ": " + std::generic_category().message(errno));
  }
  return history;
}

}  // namespace varve::cli
