#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>

#include "base/run_threads.h"
#include "base/time_source.h"
#include "catalogue/family.h"
#include "catalogue/names.h"
#include "format/json_writer.h"
#include "publish/save_id.h"
#include "varve/manage.h"

namespace varve {
namespace {

constexpr std::uint64_t kMaxLineBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kMaxRunNoteBytes = std::uint64_t{64} << 10;
/// Requests under way at once while a history is read.
constexpr int kReaders = 16;
constexpr std::int64_t kNsPerMs = 1'000'000;

Result<std::string> RunInObjectStore(const std::string& given, Storage& storage,
                                     const std::string& what) {
  VARVE_ASSIGN_OR_RETURN(std::string run, ResolvePath(given, storage));
  if (ConditionalWritesOf(storage, run) == nullptr) {
    return Unimplemented(what + " " + run + ": directories have files for that");
  }
  return run;
}

/// An event by the name of its object, "0001764000000123-save-0a1b2c3d".
struct EventName {
  std::int64_t ms = 0;  ///< Unix time.
  std::string event;
};

std::optional<EventName> ParseEventName(std::string_view name) {
  EventName found;
  const char* const begin = name.data();
  const char* const end = begin + name.size();
  const auto parsed = std::from_chars(begin, end, found.ms);
  const std::size_t last = name.rfind('-');
  const auto digits = static_cast<std::size_t>(parsed.ptr - begin);
  if (parsed.ec != std::errc() || parsed.ptr == end || *parsed.ptr != '-' || last <= digits + 1) {
    return std::nullopt;
  }
  found.event = name.substr(digits + 1, last - digits - 1);
  return found;
}

std::string LineOfName(const EventName& name) {
  std::array<char, 40> seconds{};
  std::snprintf(seconds.data(), seconds.size(), "%.3f", static_cast<double>(name.ms) / 1000);
  std::string line = "{\"time\": ";
  line += seconds.data();
  line += ", \"event\": ";
  AppendJsonString(name.event, &line);
  line += "}";
  return line;
}

/// Reads objects, several at a time. One that is removed meanwhile leaves its line as it is.
Status ReadAll(Storage& storage, const std::vector<std::pair<std::string, std::string*>>& wanted) {
  return RunThreads(wanted.size(), kReaders, {}, [&](std::size_t i) {
    auto text = ReadWholeFile(storage, wanted[i].first, kMaxLineBytes);
    if (text.ok()) {
      *wanted[i].second = std::move(*text);
    }
    return text.ok() || text.status().code() == StatusCode::kNotFound ? Status::Ok()
                                                                      : text.status();
  });
}

}  // namespace

Status AddToRunHistory(const std::string& given, std::string_view event, std::string_view line,
                       Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string run,
                         RunInObjectStore(given, storage, "add to the history of"));
  VARVE_ASSIGN_OR_RETURN(const SaveId id, RandomSaveId());
  std::array<char, 32> time{};
  std::snprintf(time.data(), time.size(), "%016lld-",
                static_cast<long long>(TimeOfDay().count() / kNsPerMs));
  std::string name = time.data();
  name += event;
  name += "-" + ToString(id).substr(0, 8);
  return WriteWholeFile(storage, JoinPath(JoinPath(run, kRunHistory), name), line, false)
      .Annotate("add to the history of " + run);
}

Result<std::vector<std::string>> ReadRunHistory(const std::string& given,
                                                const std::vector<std::string>& wanted,
                                                Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string run,
                         RunInObjectStore(given, storage, "read the history of"));
  const std::string directory = JoinPath(run, kRunHistory);
  const auto entries = storage.List(directory);
  std::vector<std::string> lines;
  if (entries.status().code() == StatusCode::kNotFound) {
    return lines;
  }
  VARVE_RETURN_IF_ERROR(entries.status());
  lines.reserve(entries->size());
  std::vector<std::pair<std::string, std::string*>> read;
  for (const DirectoryEntry& entry : *entries) {  // Sorted by name, which begins with the time.
    const auto name = ParseEventName(entry.name);
    if (!name || entry.is_directory) {
      continue;
    }
    lines.push_back(LineOfName(*name));
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), name->event) != wanted.end()) {
      read.emplace_back(JoinPath(directory, entry.name), &lines.back());
    }
  }
  VARVE_RETURN_IF_ERROR(ReadAll(storage, read).Annotate("read the history of " + run));
  return lines;
}

Result<std::string> ReadRunNote(const std::string& given, std::string_view name, Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string run, RunInObjectStore(given, storage, "read a note of"));
  return ReadWholeFile(storage, JoinPath(run, name), kMaxRunNoteBytes);
}

Status WriteRunNote(const std::string& given, std::string_view name, std::string_view text,
                    Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string run,
                         RunInObjectStore(given, storage, "write a note of"));
  return WriteWholeFile(storage, JoinPath(run, name), text, false);
}

Status RemoveRunNote(const std::string& given, std::string_view name, Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string run,
                         RunInObjectStore(given, storage, "remove a note of"));
  return storage.Remove(JoinPath(run, name));
}

}  // namespace varve
