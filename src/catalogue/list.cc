#include <algorithm>
#include <iterator>
#include <utility>

#include "base/run_threads.h"
#include "base/stop.h"
#include "catalogue/family.h"
#include "catalogue/formats.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/own_names.h"
#include "catalogue/remains.h"
#include "catalogue/scan.h"
#include "catalogue/side_files.h"
#include "catalogue/unfinished.h"
#include "format/commit_record.h"
#include "varve/catalogue.h"
#include "varve/step_note.h"
#include "varve/storage.h"

namespace varve {
namespace {

/// Returns true when the save that owns this stale is alive: its lock is held.
bool IsLocked(Storage& storage, const std::string& path) {
  const auto is_held = [&](const std::string& lock) {
    return storage.Lock(lock).status().code() == StatusCode::kFailedPrecondition;
  };
  const std::string old_lock = OldLockPath(path);
  return is_held(LockPath(path)) || (storage.OpenForRead(old_lock).ok() && is_held(old_lock));
}

/// Returns true for an error of a read that does not tell whether what is stored is damaged.
bool IsReadFailure(const Status& status) {
  return status.code() == StatusCode::kUnavailable || IsForbidden(status);
}

/// Returns why a side file is not what was saved, or Ok. Of most it compares the size alone; in
/// formats of other software not even that, for people edit the configuration of a model. The note
/// of a step is read: no manager resumes from a step whose note is damaged.
Status CheckSideFile(Storage& storage, const std::string& directory, const StoredFile& file,
                     bool native) {
  if (file.name == kStepNoteName) {
    return ReadSideFile(storage, directory, file).status();
  }
  const auto found = storage.OpenForRead(JoinPath(directory, file.name));
  if (IsReadFailure(found.status())) {
    return found.status();
  }
  return found.ok() && (!native || (*found)->size() == file.size)
             ? Status::Ok()
             : DataLoss(file.name + (found.ok() ? " is of another size" : " is missing"));
}

/// Returns why the files do not match the index, or Ok.
Status CheckFiles(Storage& storage, const OpenedIndex& opened) {
  for (const StoredFile& file : opened.metadata.side_files) {
    VARVE_RETURN_IF_ERROR(
        CheckSideFile(storage, opened.side_home(), file, opened.metadata.format == Format::kVarve));
  }
  if (opened.metadata.format != Format::kVarve) {
    return Status::Ok();  // Opening has asked storage for them already.
  }
  std::vector<DirectoryEntry> entries;
  if (IsUnlisted(storage, opened.directory)) {
    for (const DataFile& file : opened.metadata.files) {
      if (const auto found = storage.OpenForRead(JoinPath(opened.directory, file.name));
          found.ok()) {
        entries.push_back({file.name, false, (*found)->size(), 0, false});
      }
    }
    std::sort(entries.begin(), entries.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
  } else {
    VARVE_ASSIGN_OR_RETURN(entries, storage.List(opened.directory));
  }
  for (const DataFile& file : opened.metadata.files) {
    const DirectoryEntry* const found = FindEntry(entries, file.name);
    if (found == nullptr) {
      return DataLoss(file.name + " is missing");
    }
    if (found->size != file.size) {
      return DataLoss(file.name + " has " + std::to_string(found->size) + " bytes instead of " +
                      std::to_string(file.size));
    }
  }
  return Status::Ok();
}

/// Returns the state of a checkpoint that cannot be opened.
CheckpointState StateOf(const Status& status) {
  if (status.code() == StatusCode::kFailedPrecondition) {
    return CheckpointState::kIncomplete;
  }
  return IsReadFailure(status) ? CheckpointState::kUnreadable : CheckpointState::kDamaged;
}

/// Returns the entry for a directory with a step in its name that this process may not list;
/// nothing for others.
std::optional<CheckpointEntry> ExamineUnlistable(Storage& storage, const std::string& path,
                                                 const std::string& name) {
  const Status listed = storage.List(path).status();
  if (!IsReadFailure(listed) || !StepFromName(name)) {
    return std::nullopt;
  }
  return CheckpointEntry{.name = name,
                         .state = CheckpointState::kUnreadable,
                         .detail = listed.message(),
                         .step = StepFromName(name)};
}

/// Returns the entry for a directory, or nothing when it is no checkpoint. Errors: where a server
/// does not answer or refuses, which says nothing of the checkpoint.
Result<std::optional<CheckpointEntry>> Examine(Storage& storage, const std::string& path,
                                               const std::string& name) {
  CheckpointEntry entry{.name = name, .step = StepFromName(name)};
  const auto opened = OpenIndex(storage, path);
  if (opened.ok()) {
    entry.format = opened->metadata.format;
    entry.bytes = opened->metadata.TotalBytes();
    entry.world_size = opened->metadata.world_size;
    if (opened->metadata.save_id != SaveId{}) {
      entry.save_id = opened->metadata.save_id;
    }
    if (const Status files = CheckFiles(storage, *opened); !files.ok()) {
      if (opened->record &&
          ReadCommitRecord(storage, path).status().code() == StatusCode::kNotFound) {
        return std::optional<CheckpointEntry>();  // It has been removed since it was opened.
      }
      if (TellsNothing(storage, path, files)) {
        return files;
      }
      entry.state = StateOf(files);
      entry.detail = files.message();
    }
    return std::optional(std::move(entry));
  }
  const StatusCode code = opened.status().code();
  if (TellsNothing(storage, path, opened.status())) {
    return opened.status();
  }
  if (code == StatusCode::kNotFound || (IsForbidden(opened.status()) && !storage.List(path).ok())) {
    return ExamineUnlistable(storage, path, name);
  }
  entry.state = StateOf(opened.status());
  entry.detail = opened.status().message();
  const auto scan = ScanDataFiles(storage, path);
  const bool is_scanned = scan.ok() && !scan->groups.empty();
  if (const auto files = storage.List(path); files.ok()) {
    entry.format = FormatOf(storage, path, *files).value_or(Format::kVarve);
    for (const DirectoryEntry& file : *files) {
      entry.bytes += is_scanned ? 0 : file.size;  // What is there: its index does not say.
    }
  }
  if (code == StatusCode::kUnimplemented && entry.format == Format::kVarve) {
    entry.state = CheckpointState::kUnsupported;
  }
  if (is_scanned) {
    const FileGroup& group = scan->groups.front();
    entry.world_size = group.world_size;
    entry.save_id = group.save_id;
    if (entry.state == CheckpointState::kIncomplete) {
      entry.detail = "files of " + NameRanks(group.missing) + " are missing";
    }
    for (const CheckedHeader& file : group.files) {
      entry.bytes += file.header_bytes + file.header.data_bytes;
    }
  }
  return std::optional(std::move(entry));
}

/// Returns the entry for what is left of a checkpoint that has lost its index and its data; nothing
/// for any other directory, nor for an empty one whose name a save has locked.
std::optional<CheckpointEntry> ExamineRemains(Storage& storage, const std::string& path,
                                              const std::string& name) {
  const auto remains = RemainsOfCheckpoint(storage, path);
  const auto files = storage.List(path);
  if (!remains || !files.ok() ||
      (files->empty() && storage.OpenForRead(LockPath(path)).ok() && IsLocked(storage, path))) {
    return std::nullopt;
  }
  CheckpointEntry entry{.name = name,
                        .state = CheckpointState::kDamaged,
                        .detail = *remains,
                        .step = StepFromName(name)};
  for (const DirectoryEntry& file : *files) {
    entry.bytes += file.size;
  }
  return entry;
}

CheckpointEntry ExamineStale(Storage& storage, const std::string& directory,
                             const DirectoryEntry& found, const StaleName& stale,
                             bool target_exists) {
  CheckpointEntry entry{.name = found.name, .step = StepFromName(stale.target)};
  const std::string target = JoinPath(directory, stale.target);
  if (stale.kind == StaleKind::kDisplaced && !target_exists) {
    const auto found_there = Examine(storage, target, stale.target);
    if (auto displaced = found_there.ok() ? *found_there : std::nullopt) {
      displaced->state = displaced->state == CheckpointState::kWhole ? CheckpointState::kDisplaced
                                                                     : displaced->state;
      const std::string problem = displaced->detail.empty() ? "" : "; " + displaced->detail;
      displaced->detail = "under " + found.name + "; an overwrite was interrupted" + problem;
      return *displaced;
    }
  }
  if (IsLocked(storage, target)) {
    entry.state = CheckpointState::kSaving;
    entry.detail = "a save of " + stale.target + " is under way";
  } else {
    entry.state = CheckpointState::kStale;
    entry.detail = (stale.kind == StaleKind::kRemoved ? "of an interrupted removal of "
                                                      : "of a dead save of ") +
                   stale.target;
  }
  if (const auto files = storage.List(JoinPath(directory, found.name)); files.ok()) {
    for (const DirectoryEntry& file : *files) {
      entry.bytes += file.size;
    }
  }
  return entry;
}

/// Returns the entry for a directory in which OLMo writes a checkpoint, or wrote one and died;
/// nothing for any other.
std::optional<CheckpointEntry> ExamineUnfinished(Storage& storage, const std::string& path,
                                                 const std::string& name) {
  const auto target = UnfinishedTarget(name);
  const auto found = ReadUnfinished(storage, path);
  if (!found) {
    return std::nullopt;
  }
  CheckpointEntry entry{
      .name = name, .state = CheckpointState::kIncomplete, .step = StepFromName(name)};
  entry.format = found->format;
  entry.bytes = found->bytes;
  entry.detail = found->has_mark
                     ? "OLMo has written all of it and not renamed it to " + *target
                     : "OLMo has not finished it: a save of " + *target +
                           " is under way, or has died; `varve gc` removes it after a day";
  return entry;
}

/// Returns the entry for a damaged checkpoint that was taken out of the way.
CheckpointEntry ExamineQuarantined(Storage& storage, const std::string& path,
                                   const DirectoryEntry& found, const std::string& target) {
  CheckpointEntry entry{
      .name = found.name, .state = CheckpointState::kQuarantined, .step = StepFromName(target)};
  entry.detail = target + ": " + NoteText(storage, JoinPath(path, kQuarantineReasonName));
  if (const auto files = storage.List(path); files.ok()) {
    entry.format = FormatOf(storage, path, *files).value_or(Format::kVarve);
    for (const DirectoryEntry& file : *files) {
      entry.bytes += file.size;
    }
  }
  return entry;
}

/// Returns the entry for the note of an asynchronous save that has failed.
std::optional<CheckpointEntry> ExamineFailure(Storage& storage, const std::string& directory,
                                              const DirectoryEntry& found) {
  const auto stale = ParseStaleName(found.name);
  if (!stale || stale->kind != StaleKind::kFailed || found.is_link) {
    return std::nullopt;
  }
  CheckpointEntry entry{.name = stale->target,
                        .state = CheckpointState::kFailed,
                        .step = StepFromName(stale->target)};
  entry.detail = NoteText(storage, JoinPath(directory, found.name));
  return entry;
}

/// Returns true for the directory of a step, and for what saves of steps leave beside them.
bool IsOfStep(const DirectoryEntry& entry) {
  if (const auto stale = ParseStaleName(entry.name)) {
    return IsStepName(stale->target);
  }
  if (const auto quarantined = ParseQuarantinedName(entry.name)) {
    return IsStepName(*quarantined);
  }
  return entry.is_directory && IsStepName(entry.name);
}

/// Adds what the i-th entry of a directory is.
Status ListItem(Storage& storage, const std::string& directory,
                const std::vector<DirectoryEntry>& found, std::size_t i,
                std::vector<CheckpointEntry>* entries) {
  const DirectoryEntry& item = found[i];
  const std::string path = JoinPath(directory, item.name);
  if (!item.is_directory) {
    if (auto failed = ExamineFailure(storage, directory, item)) {
      entries->push_back(std::move(*failed));
    }
    return Status::Ok();
  }
  if (IsOfRun(item.name) || IsDataDirectoryName(item.name)) {
    return Status::Ok();
  }
  if (const auto stale = ParseStaleName(item.name)) {
    if (stale->kind == StaleKind::kChannel) {
      return Status::Ok();  // Messages; what becomes of the save is listed under its own names.
    }
    const bool target_exists =
        std::any_of(found.begin(), found.end(),
                    [&](const DirectoryEntry& e) { return e.name == stale->target; });
    entries->push_back(ExamineStale(storage, directory, item, *stale, target_exists));
    return Status::Ok();
  }
  if (const auto quarantined = ParseQuarantinedName(item.name)) {
    entries->push_back(ExamineQuarantined(storage, path, item, *quarantined));
    return Status::Ok();
  }
  if (auto unfinished = ExamineUnfinished(storage, path, item.name)) {
    entries->push_back(std::move(*unfinished));
    return Status::Ok();
  }
  VARVE_ASSIGN_OR_RETURN(auto entry, Examine(storage, path, item.name));
  if (!entry) {
    entry = ExamineRemains(storage, path, item.name);
  }
  const bool has_checkpoint = entry.has_value();
  if (entry) {
    entries->push_back(*std::move(entry));
  }
  return AddBeside(storage, path, has_checkpoint, entries);
}

}  // namespace

std::string_view StateName(CheckpointState state) {
  switch (state) {
    case CheckpointState::kWhole: return "whole";
    case CheckpointState::kIncomplete: return "incomplete";
    case CheckpointState::kDamaged: return "damaged";
    case CheckpointState::kUnsupported: return "unsupported";
    case CheckpointState::kUnreadable: return "unreadable";
    case CheckpointState::kDisplaced: return "displaced";
    case CheckpointState::kSaving: return "saving";
    case CheckpointState::kStale: return "stale";
    case CheckpointState::kFailed: return "failed";
    case CheckpointState::kQuarantined: return "quarantined";
  }
  return "unknown";
}

Result<std::vector<CheckpointEntry>> ListCheckpoints(const std::string& path, Storage& storage,
                                                     const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const std::string directory, ResolvePath(path, storage));
  if (IsUnlisted(storage, directory)) {  // It may itself be one.
    VARVE_RETURN_IF_ERROR(OpenIndex(storage, directory, stop).status());
    VARVE_ASSIGN_OR_RETURN(auto one, Examine(storage, directory, BaseName(directory)));
    return one ? std::vector{*std::move(one)} : std::vector<CheckpointEntry>();
  }
  const auto listed = storage.List(directory);
  const StatusCode code = listed.status().code();
  if (IsUnread(storage, directory, listed.status()) && code != StatusCode::kInvalidArgument) {
    return listed.status();  // A list that cannot be read does not tell that nothing is there.
  }
  // A checkpoint that has been displaced is found by a name under which there is no directory.
  if (!listed.ok() && code != StatusCode::kNotFound) {
    const Status opened = OpenKnown(storage, directory).status();
    if (opened.code() == StatusCode::kNotFound || IsForbidden(opened)) {
      return opened;  // A file of no kind that we know, or nothing that we may read.
    }
  }
  // Files of a model alone do not make the directory a checkpoint where it holds others: they may
  // have been exported from those.
  std::optional<CheckpointEntry> files_beside;
  VARVE_ASSIGN_OR_RETURN(auto self, Examine(storage, directory, BaseName(directory)));
  if (self && !listed.ok()) {
    return std::vector{*std::move(self)};
  }
  VARVE_RETURN_IF_ERROR(listed.status());
  std::vector<DirectoryEntry> found = *listed;
  std::vector<CheckpointEntry> beside;
  const std::string name = BaseName(directory);
  if (self && self->state == CheckpointState::kWhole && IsStepName(name)) {
    return std::vector{*std::move(self)};
  }
  if (self && !IsPlainModel(storage, directory, *listed)) {
    // A stray file of a checkpoint, or a save to the wrong name, must not hide the steps of a run.
    const OwnNames own(storage, directory, *listed);
    std::erase_if(found, [&](const DirectoryEntry& entry) {
      return entry.name == name || own.OwnsFolder(entry.name) || !IsOfStep(entry);
    });
    beside.push_back(*std::move(self));
  } else {
    files_beside = std::move(self);
    VARVE_RETURN_IF_ERROR(AddBeside(storage, directory, files_beside.has_value(), &beside));
  }
  std::vector<std::vector<CheckpointEntry>> of_items(found.size() + 1);
  of_items.back() = std::move(beside);
  VARVE_RETURN_IF_ERROR(
      RunThreads(found.size(), ListThreads(storage, directory), stop, [&](std::size_t i) {
        return ListItem(storage, directory, found, i, &of_items[i]);
      }).Annotate("list " + directory));
  std::vector<CheckpointEntry> entries;
  for (std::vector<CheckpointEntry>& some : of_items) {
    std::move(some.begin(), some.end(), std::back_inserter(entries));
  }
  if (entries.empty() && !files_beside) {
    files_beside = ExamineRemains(storage, directory, name);
  }
  if (entries.empty() && files_beside) {
    entries.push_back(std::move(*files_beside));
  }
  std::sort(entries.begin(), entries.end(), [](const CheckpointEntry& a, const CheckpointEntry& b) {
    return a.step != b.step ? a.step < b.step : NaturalLess(a.name, b.name);
  });
  return entries;
}

}  // namespace varve
