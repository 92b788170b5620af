#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <tuple>

#include "base/run_threads.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/own_names.h"
#include "catalogue/step_notes.h"
#include "publish/claim.h"
#include "varve/manage.h"

namespace varve {
namespace {

/// Returns when a checkpoint was written: the time of the file that makes it one, else of the
/// newest file in it, else of the directory, `there`. With such a file, a file that a user adds
/// later changes nothing. 0: not known. Errors: those of an object store.
Result<std::int64_t> WrittenAt(Storage& storage, const std::string& path,
                               const DirectoryEntry* there) {
  const auto entries = storage.List(path);
  if (TellsNothing(storage, path, entries.status())) {
    return entries.status();
  }
  if (!entries.ok()) {
    return there == nullptr ? 0 : there->modified_ns;
  }
  const OwnNames names(storage, path, *entries);
  std::int64_t of_index = 0;
  std::int64_t newest = 0;
  for (const DirectoryEntry& entry : *entries) {
    if (entry.is_directory || entry.name == kPinName) {  // A pin comes later.
      continue;
    }
    newest = std::max(newest, entry.modified_ns);
    if (names.IsIndex(entry.name) || entry.name == kUploadMark) {
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

/// Returns what is known of a checkpoint of the run, without its pin.
Result<RunStep> AsStep(Storage& storage, const std::string& run, const CheckpointEntry& entry,
                       const DirectoryEntry* there) {
  RunStep step;
  step.name = entry.name;
  step.step = entry.step.value_or(0);
  step.state = entry.state;
  step.detail = entry.detail;
  step.bytes = entry.bytes;
  step.world_size = entry.world_size;
  step.save_id = entry.save_id;
  step.is_link = there != nullptr && there->is_link;
  const std::string path = JoinPath(run, entry.name);
  auto note = ReadStepNote(storage, path, entry.state == CheckpointState::kDisplaced);
  if (note.status().code() == StatusCode::kDataLoss && step.whole()) {
    step.state = CheckpointState::kDamaged;
    step.detail = note.status().message();
  } else if (note.status().code() != StatusCode::kDataLoss &&
             step.state != CheckpointState::kUnreadable) {
    VARVE_RETURN_IF_ERROR(note.status());
  }
  if (note.ok() && *note) {
    if ((*note)->step != step.step) {
      step.other_step = (*note)->step;
    }
    step.attempt = (*note)->attempt;
    step.time_ns = (*note)->time_ns;
    step.metrics = std::move((*note)->metrics);
  } else {
    VARVE_ASSIGN_OR_RETURN(step.time_ns, WrittenAt(storage, path, there));
  }
  return step;
}

/// The checkpoints of a run, and the entries of its directory from before.
struct Look {
  std::vector<DirectoryEntry> listed;
  std::vector<CheckpointEntry> entries;  ///< Without `self`.
  std::optional<CheckpointEntry> self;   ///< The directory is a checkpoint itself.
};

Result<Look> LookAt(Storage& storage, const std::string& run, const std::stop_token& stop) {
  Look look;
  if (auto listed = storage.List(run); listed.ok()) {
    look.listed = *std::move(listed);
  } else if (listed.status().code() == StatusCode::kUnavailable) {
    return listed.status();
  }
  VARVE_ASSIGN_OR_RETURN(look.entries, ListCheckpoints(run, storage, stop));
  const auto self =
      std::find_if(look.entries.begin(), look.entries.end(), [&](const CheckpointEntry& entry) {
        return entry.name == BaseName(run) && entry.state != CheckpointState::kDisplaced &&
               FindEntry(look.listed, entry.name) == nullptr;
      });
  if (self != look.entries.end()) {
    look.self = std::move(*self);
    look.entries.erase(self);
  }
  return look;
}

/// Returns what is known of the checkpoints that `counts` picks, in the order of the entries.
Result<std::vector<RunStep>> StepsOf(Storage& storage, const std::string& run, const Look& look,
                                     const std::stop_token& stop, bool with_pins,
                                     const std::function<bool(const CheckpointEntry&)>& counts) {
  std::vector<const CheckpointEntry*> chosen;
  for (const CheckpointEntry& entry : look.entries) {
    if (counts(entry)) {
      chosen.push_back(&entry);
    }
  }
  std::vector<RunStep> steps(chosen.size());
  const auto read = [&](std::size_t i) -> Status {
    VARVE_ASSIGN_OR_RETURN(
        steps[i], AsStep(storage, run, *chosen[i], FindEntry(look.listed, chosen[i]->name)));
    if (with_pins) {
      steps[i].pin = ReadPin(storage, JoinPath(run, steps[i].name));
    }
    return Status::Ok();
  };
  VARVE_RETURN_IF_ERROR(
      RunThreads(steps.size(), ListThreads(storage, run), stop, read).Annotate("list " + run));
  return steps;
}

bool IsWhole(const CheckpointEntry& entry) {
  return entry.state == CheckpointState::kWhole || entry.state == CheckpointState::kDisplaced;
}

/// Returns true for a checkpoint that may be the newest: also for one that this Varve or this
/// process cannot read. An older step in its place would lose, without a word, what was trained
/// since.
bool MayBeNewest(const CheckpointEntry& entry) {
  return IsWhole(entry) || entry.state == CheckpointState::kUnsupported ||
         entry.state == CheckpointState::kUnreadable;
}

/// Returns true where a step is listed that is not whole.
bool HasBrokenStep(const Look& look) {
  return std::any_of(look.entries.begin(), look.entries.end(), [](const CheckpointEntry& entry) {
    return IsStepName(entry.name) && (entry.state == CheckpointState::kDamaged ||
                                      entry.state == CheckpointState::kIncomplete);
  });
}

/// Returns true for a copy of a step under the number of another one.
bool IsMisnamed(const RunStep& step) { return step.other_step && IsStepName(step.name); }

/// Returns true where a directory was listed as a checkpoint may be and is none, or data alone: it
/// was removed meanwhile, or is being removed, and another may have come that was not listed yet.
bool HasMissed(const Look& look) {
  return std::any_of(look.listed.begin(), look.listed.end(), [&](const DirectoryEntry& entry) {
    return entry.is_directory && IsStepName(entry.name) &&
           std::none_of(look.entries.begin(), look.entries.end(), [&](const CheckpointEntry& one) {
             return one.name == entry.name && one.state != CheckpointState::kSaving;
           });
  });
}

/// Returns the checkpoints with names of steps, in the order of ListSteps, also those whose notes
/// have other steps.
Result<std::vector<RunStep>> ListNamed(const std::string& given, Storage& storage,
                                       const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const std::string run, ResolvePath(given, storage));
  const auto listed = storage.List(run);
  if (listed.status().code() == StatusCode::kNotFound) {
    return std::vector<RunStep>{};
  }
  VARVE_RETURN_IF_ERROR(listed.status());
  VARVE_ASSIGN_OR_RETURN(const Look look, LookAt(storage, run, stop));
  VARVE_ASSIGN_OR_RETURN(
      auto steps,
      StepsOf(storage, run, look, stop, /*with_pins=*/true, [&](const CheckpointEntry& entry) {
        return (MayBeNewest(entry) || entry.state == CheckpointState::kDamaged ||
                entry.state == CheckpointState::kIncomplete) &&
               IsStepName(entry.name);
      }));
  SortSteps(&steps);
  return steps;
}

}  // namespace

Result<std::vector<RunStep>> ListSteps(const std::string& run, Storage& storage,
                                       const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(auto steps, ListNamed(run, storage, stop));
  std::erase_if(steps, [](const RunStep& step) { return step.other_step.has_value(); });
  return steps;
}

Result<std::vector<RunStep>> ListMisnamedSteps(const std::string& run, Storage& storage,
                                               const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(auto steps, ListNamed(run, storage, stop));
  std::erase_if(steps, [](const RunStep& step) { return !step.other_step; });
  return steps;
}

Result<std::string> NewestCheckpoint(const std::string& given, Storage& storage,
                                     const std::stop_token& stop) {
  constexpr int kLooks = 5;
  VARVE_ASSIGN_OR_RETURN(const std::string directory, ResolvePath(given, storage));
  std::vector<RunStep> found;
  for (int i = 0; i < kLooks && found.empty(); ++i) {
    VARVE_ASSIGN_OR_RETURN(const Look look, LookAt(storage, directory, stop));
    VARVE_ASSIGN_OR_RETURN(
        found, StepsOf(storage, directory, look, stop, /*with_pins=*/false, MayBeNewest));
    std::erase_if(found,
                  [](const RunStep& step) { return step.state == CheckpointState::kDamaged; });
    if (HasBrokenStep(look) && std::all_of(found.begin(), found.end(), IsMisnamed)) {
      found.clear();  // As a resume, which fails there: a copy takes no lost step's place.
    }
    if (found.empty() && look.self && IsWhole(*look.self)) {
      return directory;
    }
    if (!HasMissed(look)) {
      break;
    }
  }
  if (found.empty()) {
    return NotFound("there is no whole checkpoint in " + directory);
  }
  const auto path_of = [&](const RunStep& step) -> Result<std::string> {
    if (step.whole()) {
      return JoinPath(directory, step.name);
    }
    const std::string why =
        "the newest checkpoint in " + directory + " cannot be read: " + step.detail;
    return step.state == CheckpointState::kUnsupported ? Unimplemented(why) : Unavailable(why);
  };
  // As a resume: steps before others, and names with a number in them before those without.
  for (const auto& counts :
       {+[](const RunStep& step) { return IsStepName(step.name) && !step.other_step; },
        +[](const RunStep& step) {
          return StepFromName(step.name).has_value() && !step.other_step;
        }}) {
    std::vector<RunStep> some;
    std::copy_if(found.begin(), found.end(), std::back_inserter(some), counts);
    if (!some.empty()) {
      SortSteps(&some);
      return path_of(some.back());
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const RunStep& a, const RunStep& b) { return a.time_ns < b.time_ns; });
  return path_of(found.back());
}

}  // namespace varve
