#include <algorithm>
#include <tuple>

#include "base/ascii.h"
#include "base/stop.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/side_files.h"
#include "manage/pin.h"
#include "varve/manage.h"

namespace varve {
namespace {

constexpr std::uint64_t kMaxNoteBytes = std::uint64_t{1} << 20;

/// Returns what a manager has noted of a checkpoint; nothing where none has. Of a checkpoint whose
/// record is damaged the note is taken unchecked: it only tells the place of the step in the run.
/// Errors: DataLoss for a note that is not what was written; those of the storage, because without
/// its note a step would be taken for an old one.
Result<std::optional<StepNote>> ReadNote(Storage& storage, const std::string& path,
                                         bool displaced) {
  using Found = std::optional<StepNote>;
  const std::string directory =
      displaced && storage.List(DisplacedPath(path)).ok() ? DisplacedPath(path) : path;
  const auto decoded = [](const std::string& text) {
    auto note = DecodeStepNote(text);  // A file of that name may be anyone's.
    return note.ok() ? Found(std::move(*note)) : Found();
  };
  const auto record = ReadCommitRecord(storage, directory);
  if (!record.ok()) {
    const auto text = ReadWholeFile(storage, JoinPath(directory, kStepNoteName), kMaxNoteBytes);
    return text.ok() ? decoded(*text) : Found();
  }
  for (const StoredFile& file : record->side_files) {
    if (file.name == kStepNoteName) {
      VARVE_ASSIGN_OR_RETURN(const std::string text, ReadSideFile(storage, directory, file));
      return decoded(text);
    }
  }
  return Found();
}

}  // namespace

bool IsStepName(std::string_view name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' || c == '=';
  };
  const auto* const digits = std::find_if_not(name.begin(), name.end(), is_letter);
  return digits != name.end() && std::all_of(digits, name.end(), IsDigit) &&
         StepFromName(name).has_value();
}

Result<std::vector<RunStep>> ListSteps(const std::string& given, Storage& storage,
                                       const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const std::string run, ResolvePath(given, storage));
  const auto listed = storage.List(run);
  if (listed.status().code() == StatusCode::kNotFound) {
    return std::vector<RunStep>{};
  }
  VARVE_RETURN_IF_ERROR(listed.status());
  VARVE_ASSIGN_OR_RETURN(auto entries, ListCheckpoints(run, storage, stop));
  std::vector<RunStep> steps;
  for (CheckpointEntry& entry : entries) {
    VARVE_RETURN_IF_ERROR(CheckStop(stop).Annotate("list " + run));
    const bool counts =
        entry.state == CheckpointState::kWhole || entry.state == CheckpointState::kDisplaced ||
        entry.state == CheckpointState::kDamaged || entry.state == CheckpointState::kIncomplete;
    const DirectoryEntry* const there = FindEntry(*listed, entry.name);
    const bool is_displaced = entry.state == CheckpointState::kDisplaced;
    if (!counts || !IsStepName(entry.name) || (there == nullptr && !is_displaced)) {
      continue;  // Without an entry in the run, the run is itself a checkpoint.
    }
    RunStep step;
    step.step = entry.step.value_or(0);
    step.state = entry.state;
    step.detail = std::move(entry.detail);
    step.bytes = entry.bytes;
    step.world_size = entry.world_size;
    step.time_ns = there == nullptr ? 0 : there->modified_ns;
    const std::string path = JoinPath(run, entry.name);
    auto note = ReadNote(storage, path, is_displaced);
    if (note.status().code() == StatusCode::kDataLoss && step.whole()) {
      step.state = CheckpointState::kDamaged;
      step.detail = note.status().message();
    } else if (note.status().code() != StatusCode::kDataLoss) {
      VARVE_RETURN_IF_ERROR(note.status());
    }
    if (note.ok() && *note) {
      step.attempt = (*note)->attempt;
      step.time_ns = (*note)->time_ns;
      step.metrics = std::move((*note)->metrics);
    }
    step.pin = ReadPin(storage, path);
    step.name = std::move(entry.name);
    steps.push_back(std::move(step));
  }
  std::sort(steps.begin(), steps.end(), [](const RunStep& a, const RunStep& b) {
    if (std::tie(a.attempt, a.step) != std::tie(b.attempt, b.step)) {
      return std::tie(a.attempt, a.step) < std::tie(b.attempt, b.step);
    }
    return NaturalLess(a.name, b.name);
  });
  return steps;
}

Result<std::string> NewestCheckpoint(const std::string& given, Storage& storage,
                                     const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const std::string directory, ResolvePath(given, storage));
  VARVE_ASSIGN_OR_RETURN(const auto entries, ListCheckpoints(directory, storage, stop));
  const auto listed = storage.List(directory);
  using Age = std::tuple<std::uint64_t, std::optional<std::uint64_t>, std::int64_t>;
  std::optional<std::pair<Age, std::string>> newest;
  for (const CheckpointEntry& entry : entries) {
    const bool is_displaced = entry.state == CheckpointState::kDisplaced;
    if (entry.state != CheckpointState::kWhole && !is_displaced) {
      continue;
    }
    const DirectoryEntry* const there = listed.ok() ? FindEntry(*listed, entry.name) : nullptr;
    if (there == nullptr && !is_displaced) {
      return directory;  // It is a checkpoint itself.
    }
    const std::string path = JoinPath(directory, entry.name);
    const auto note = ReadNote(storage, path, is_displaced);
    if (note.status().code() == StatusCode::kDataLoss) {
      continue;
    }
    VARVE_RETURN_IF_ERROR(note.status());
    const Age age{*note ? (*note)->attempt : 0, entry.step,
                  there == nullptr ? 0 : there->modified_ns};
    if (!newest || age > newest->first) {
      newest = {age, path};
    }
  }
  if (!newest) {
    return NotFound("there is no whole checkpoint in " + directory);
  }
  return std::move(newest->second);
}

}  // namespace varve
