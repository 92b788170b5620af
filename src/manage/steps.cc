#include <algorithm>
#include <map>
#include <tuple>

#include "base/ascii.h"
#include "base/stop.h"
#include "catalogue/foreign.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/step_notes.h"
#include "manage/pin.h"
#include "varve/manage.h"

namespace varve {
namespace {

/// Returns when a checkpoint was written: the time of the file that makes it one, else of the
/// newest file in it, else of the directory, `there`. What a user puts beside it later does not
/// count. 0: not known. Errors: those of the storage.
Result<std::int64_t> WrittenAt(Storage& storage, const std::string& path,
                               const DirectoryEntry* there) {
  const auto entries = storage.List(path);
  if (entries.status().code() == StatusCode::kNotFound) {
    return 0;  // The step has been removed since it was listed, or is displaced.
  }
  VARVE_RETURN_IF_ERROR(entries.status());
  std::int64_t of_index = 0;
  std::int64_t newest = 0;
  for (const DirectoryEntry& entry : *entries) {
    if (entry.is_directory || entry.name == kPinName) {  // A pin comes later.
      continue;
    }
    newest = std::max(newest, entry.modified_ns);
    if (RecordNumber(entry.name) || IsDcpIndexName(entry.name) || entry.name == kHfIndexName) {
      of_index = std::max(of_index, entry.modified_ns);
    }
  }
  newest = newest == 0 && there != nullptr ? there->modified_ns : newest;
  return of_index != 0 ? of_index : newest;
}

/// Orders steps as ListSteps says.
void SortSteps(std::vector<RunStep>* steps) {
  // What a script saves while a manager has the run, or after it, is as new as what the manager
  // saves.
  const std::vector<RunStep> listed = *steps;
  const auto attempt_of = [&](const RunStep& step) {
    std::uint64_t attempt = step.attempt;
    for (const RunStep& other : listed) {
      if (step.attempt == 0 && other.time_ns <= step.time_ns) {
        attempt = std::max(attempt, other.attempt);
      }
    }
    return attempt;
  };
  std::map<std::string, std::uint64_t> attempts;
  for (const RunStep& step : listed) {
    attempts[step.name] = attempt_of(step);
  }
  std::sort(steps->begin(), steps->end(), [&](const RunStep& a, const RunStep& b) {
    const auto of_a = std::tuple(attempts[a.name], a.step);
    const auto of_b = std::tuple(attempts[b.name], b.step);
    return of_a != of_b ? of_a < of_b : NaturalLess(a.name, b.name);
  });
}

}  // namespace

std::string_view StepPrefix(std::string_view name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' || c == '=';
  };
  const auto* const digits = std::find_if_not(name.begin(), name.end(), is_letter);
  return name.substr(0, static_cast<std::size_t>(digits - name.begin()));
}

bool IsStepName(std::string_view name) {
  const std::string_view digits = name.substr(StepPrefix(name).size());
  return !digits.empty() && std::all_of(digits.begin(), digits.end(), IsDigit) &&
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
    const std::string path = JoinPath(run, entry.name);
    auto note = ReadStepNote(storage, path, is_displaced);
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
    } else {
      VARVE_ASSIGN_OR_RETURN(step.time_ns, WrittenAt(storage, path, there));
    }
    step.pin = ReadPin(storage, path);
    step.save_id = entry.save_id;
    step.is_link = there != nullptr && there->is_link;
    step.name = std::move(entry.name);
    steps.push_back(std::move(step));
  }
  SortSteps(&steps);
  return steps;
}

Result<std::string> NewestCheckpoint(const std::string& given, Storage& storage,
                                     const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const std::string directory, ResolvePath(given, storage));
  const auto listed = storage.List(directory);
  VARVE_ASSIGN_OR_RETURN(const auto entries, ListCheckpoints(directory, storage, stop));
  std::vector<RunStep> whole;
  std::vector<RunStep> steps;  // Those of them that ListSteps counts, as a resume does.
  bool any_step = false;
  for (const CheckpointEntry& entry : entries) {
    const bool is_displaced = entry.state == CheckpointState::kDisplaced;
    if (entry.state != CheckpointState::kWhole && !is_displaced) {
      continue;
    }
    const DirectoryEntry* const there = listed.ok() ? FindEntry(*listed, entry.name) : nullptr;
    if (there == nullptr && !is_displaced) {
      if (entries.size() == 1 && entry.name == BaseName(directory)) {
        return directory;  // It is a checkpoint itself.
      }
      continue;  // It has come since the directory was listed.
    }
    const auto note = ReadStepNote(storage, JoinPath(directory, entry.name), is_displaced);
    if (note.status().code() == StatusCode::kDataLoss) {
      continue;
    }
    VARVE_RETURN_IF_ERROR(note.status());
    any_step = any_step || entry.step.has_value();
    RunStep step;
    step.name = entry.name;
    // Names without a step come before all others.
    step.step = entry.step ? *entry.step + 1 : 0;
    if (*note) {
      step.attempt = (*note)->attempt;
      step.time_ns = (*note)->time_ns;
    } else {
      VARVE_ASSIGN_OR_RETURN(step.time_ns,
                             WrittenAt(storage, JoinPath(directory, entry.name), there));
    }
    if (IsStepName(step.name)) {
      steps.push_back(step);
    }
    whole.push_back(std::move(step));
  }
  if (!steps.empty()) {
    SortSteps(&steps);
    return JoinPath(directory, steps.back().name);
  }
  if (whole.empty()) {
    return NotFound("there is no whole checkpoint in " + directory);
  }
  if (any_step) {
    std::erase_if(whole, [](const RunStep& step) { return step.step == 0; });
    SortSteps(&whole);
  } else {
    std::stable_sort(whole.begin(), whole.end(),
                     [](const RunStep& a, const RunStep& b) { return a.time_ns < b.time_ns; });
  }
  return JoinPath(directory, whole.back().name);
}

}  // namespace varve
