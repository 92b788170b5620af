#include "catalogue/remains.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/ascii.h"
#include "catalogue/family.h"
#include "catalogue/formats/known_format.h"
#include "catalogue/names.h"
#include "catalogue/own_names.h"
#include "format/commit_record.h"
#include "varve/catalogue.h"
#include "varve/step_note.h"

namespace varve {
namespace {

/// Returns true for a file that Varve alone writes into a checkpoint's directory, and that does not
/// make it one.
bool IsTrace(const DirectoryEntry& entry) {
  return !entry.is_directory && (entry.name == kManifestName || entry.name == kStepNoteName ||
                                 entry.name == kPinName || entry.name == kQuarantineReasonName);
}

/// Returns true for the names that managers give to steps unless they are told otherwise.
bool IsManagersName(std::string_view name) {
  constexpr std::size_t kDigits = 8;
  return StepPrefix(name) == "step-" && name.size() >= StepPrefix(name).size() + kDigits;
}

/// Returns true for a name with a word for a step: beside a history, "figures-1" may be a user's.
bool HasWordForStep(std::string_view name) {
  constexpr std::string_view kWords[] = {"step", "checkpoint", "ckpt", "iter"};
  return std::any_of(std::begin(kWords), std::end(kWords), [&](std::string_view word) {
    return StepPrefix(name).find(word) != std::string_view::npos;
  });
}

/// Returns true for a checkpoint of Varve's beside an empty directory, or what is left of one,
/// whose name begins with `prefix`.
bool IsCheckpointOfRun(Storage& storage, const std::string& parent, const DirectoryEntry& entry,
                       std::string_view prefix) {
  if (!entry.is_directory) {
    return false;
  }
  const auto quarantined = ParseQuarantinedName(entry.name);
  const std::string& name = quarantined ? *quarantined : entry.name;
  if (!IsStepName(name) || StepPrefix(name) != prefix) {
    return false;
  }
  const auto files = storage.List(JoinPath(parent, entry.name));
  return files.ok() && (NewestRecord(*files) > 0 ||
                        std::any_of(files->begin(), files->end(), [](const DirectoryEntry& file) {
                          return IsTrace(file) ||
                                 (!file.is_directory && kVarveKnown.Owns(file.name));
                        }));
}

/// Returns true where something beside the empty directory `path` tells that a checkpoint was there.
bool WasStep(Storage& storage, const std::string& path) {
  const std::string name = BaseName(path);
  const auto displaced = DisplacedPaths(storage, path);
  if (!IsStepName(name) ||
      std::any_of(displaced.begin(), displaced.end(), [&](const std::string& old) {
        return HoldsCheckpoint(storage, old);  // It gets the name back.
      })) {
    return false;
  }
  const std::string parent = ParentPath(path);
  const auto beside = storage.List(parent);
  return IsManagersName(name) ||
         (beside.ok() &&
          std::any_of(beside->begin(), beside->end(), [&](const DirectoryEntry& one) {
            return (one.name == kHistoryName && HasWordForStep(name)) ||
                   (one.name != name && IsCheckpointOfRun(storage, parent, one, StepPrefix(name)));
          }));
}

/// Returns true where a rank writes into the directory without coordination: its side files come
/// before its data.
bool IsBeingSaved(Storage& storage, const std::string& path,
                  const std::vector<DirectoryEntry>& entries) {
  return std::any_of(entries.begin(), entries.end(), [&](const DirectoryEntry& entry) {
    return IsInnerLock(entry.name) && storage.Lock(JoinPath(path, entry.name)).status().code() ==
                                          StatusCode::kFailedPrecondition;
  });
}

}  // namespace

std::optional<std::string> RemainsOfCheckpoint(Storage& storage, const std::string& path) {
  if (IsRemote(storage, path)) {
    return std::nullopt;
  }
  const auto entries = storage.List(path);
  if (!entries.ok() || Recognise({storage, path, *entries}) != nullptr) {
    return std::nullopt;
  }
  std::string traces;
  for (const DirectoryEntry& entry : *entries) {
    if (IsTrace(entry)) {
      traces += (traces.empty() ? "" : ", ") + entry.name;
    }
  }
  if (!traces.empty() && !IsBeingSaved(storage, path, *entries)) {
    return "its index and its data are missing; what is left of it: " + traces;
  }
  return entries->empty() && WasStep(storage, path)
             ? std::optional<std::string>("the directory is empty: its files have been removed")
             : std::nullopt;
}

}  // namespace varve
