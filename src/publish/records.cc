#include "publish/records.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/stop.h"
#include "base/time_source.h"
#include "catalogue/family.h"
#include "catalogue/formats.h"
#include "catalogue/formats/dcp.h"
#include "catalogue/formats/hf.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/own_names.h"
#include "catalogue/scan.h"
#include "format/commit_record.h"
#include "publish/families.h"
#include "publish/remove.h"
#include "publish/upload_claim.h"

namespace varve {
namespace {

/// The commit records of a checkpoint's directory, and the data directories in it.
struct Found {
  std::map<std::uint64_t, CommitRecord> records;  ///< By number.
  std::set<std::string> unreadable;               ///< Names of records and indexes.
  std::vector<std::string> directories;
  std::set<std::string> indexed;  ///< Those that indexes of other formats name.
  bool claimed = false;           ///< By an upload of files with fixed names.
  /// Records in quarantine, by the names of their files; nothing for one that cannot be read.
  std::map<std::string, std::optional<CommitRecord>> quarantined;
};

/// Returns true for the files of a quarantine: the record, and its reason.
bool IsOfQuarantine(const Found& found, std::string_view name) {
  return std::any_of(found.quarantined.begin(), found.quarantined.end(), [&](const auto& one) {
    return one.first == name || ReasonOfQuarantinedRecord(one.first) == name;
  });
}

/// Returns the data directories that records in quarantine name; nothing when one of them cannot
/// be read: it may name any.
std::optional<std::set<std::string>> DirectoriesInQuarantine(const Found& found) {
  std::set<std::string> named;
  for (const auto& [name, record] : found.quarantined) {
    if (!record) {
      return std::nullopt;
    }
    named.insert(record->directory);
  }
  return named;
}

bool IsForeignIndex(const DirectoryEntry& entry) {
  return !entry.is_directory && (IsDcpIndexName(entry.name) || entry.name == kHfIndexName);
}

/// Adds the data directories that an index of another format names.
Status AddIndexed(Storage& storage, const std::string& path, const std::string& index,
                  Found* found) {
  const auto names = NamesInIndex(storage, JoinPath(path, index));
  switch (names.status().code()) {
    case StatusCode::kOk: break;
    case StatusCode::kNotFound: return Status::Ok();  // Removed since.
    case StatusCode::kUnavailable:
    case StatusCode::kFailedPrecondition: return names.status();
    default: found->unreadable.insert(index); return Status::Ok();
  }
  for (const std::string& name : *names) {
    if (std::string directory = DataDirectoryOf(name); !directory.empty()) {
      found->indexed.insert(std::move(directory));
    }
  }
  return Status::Ok();
}

/// Reads what names the data in a directory, of its entries as they were listed.
Result<Found> LookAt(Storage& storage, const std::string& path,
                     const std::vector<DirectoryEntry>& entries) {
  Found found;
  for (const DirectoryEntry& entry : entries) {
    if (entry.is_directory) {
      if (IsDataDirectoryName(entry.name)) {
        found.directories.push_back(entry.name);
      }
      continue;
    }
    found.claimed = found.claimed || entry.name == kUploadClaim;
    const auto number = RecordNumber(entry.name);
    const bool quarantined = ReasonOfQuarantinedRecord(entry.name).has_value();
    if (!number && !quarantined) {
      continue;
    }
    const auto text = ReadWholeFile(storage, JoinPath(path, entry.name), kMaxRecordBytes);
    const auto record = text.ok() ? DecodeCommitRecord(*text) : Result<CommitRecord>(text.status());
    if (quarantined) {
      found.quarantined[entry.name] = record.ok() ? std::optional(*record) : std::nullopt;
    } else if (record.ok()) {
      found.records[*number] = *record;
    } else {
      found.unreadable.insert(entry.name);
    }
  }
  for (const DirectoryEntry& entry : entries) {
    if (!found.directories.empty() && IsForeignIndex(entry)) {
      VARVE_RETURN_IF_ERROR(AddIndexed(storage, path, entry.name, &found));
    }
  }
  return found;
}

/// Lists the directory before it reads what names the data in it: what is published in between
/// counts.
Result<Found> Look(Storage& storage, const std::string& path) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(path));
  return LookAt(storage, path, entries);
}

/// Removes the directory that a record names.
Status RemoveNamed(Storage& storage, const std::string& path, const CommitRecord& record) {
  return IsDataDirectoryName(record.directory) ? storage.Remove(JoinPath(path, record.directory))
                                               : Status::Ok();  // Not one of Varve's.
}

/// Returns true where the newest record's manifest is there, as large as the record says.
Result<bool> NewestIsWhole(Storage& storage, const std::string& path, const Found& found) {
  if (found.records.empty()) {
    return false;
  }
  const CommitRecord& newest = found.records.rbegin()->second;
  const auto manifest =
      storage.OpenForRead(JoinPath(JoinPath(path, newest.directory), kManifestName));
  if (!manifest.ok()) {
    return manifest.status().code() == StatusCode::kNotFound ? Result<bool>(false)
                                                             : manifest.status();
  }
  return (*manifest)->size() == newest.manifest_bytes;
}

/// Lists what is not part of the checkpoint, relative to its directory.
Status AddOthers(Storage& storage, const std::string& path, const std::string& below,
                 const Found& found, OwnNames* own, std::vector<std::string>* others) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(JoinPath(path, below)));
  for (const DirectoryEntry& entry : entries) {
    const std::string name = below.empty() ? entry.name : JoinPath(below, entry.name);
    if (below.empty() && (entry.is_directory ? IsDataDirectoryName(entry.name)
                                             : RecordNumber(entry.name).has_value() ||
                                                   IsOfQuarantine(found, entry.name))) {
      continue;
    }
    if (entry.is_directory) {
      VARVE_RETURN_IF_ERROR(AddOthers(storage, path, name, found, own, others));
    } else if (found.indexed.empty() || !own->Contains(name)) {
      others->push_back(name);
    }
  }
  return Status::Ok();
}

/// Removes all but the data directories of saves that may live: those that no record has named, and
/// that are not a day old. With a checkpoint goes what is in quarantine only if `with_quarantine`.
Status RemoveRest(Storage& storage, const std::string& path,
                  const std::vector<DirectoryEntry>& entries, const Found& found,
                  bool with_quarantine) {
  std::set<std::string> named = found.indexed;
  for (const auto& [number, record] : found.records) {
    named.insert(record.directory);
  }
  const auto set_aside = DirectoriesInQuarantine(found);
  for (const DirectoryEntry& entry : entries) {
    const std::string place = JoinPath(path, entry.name);
    const bool is_data = entry.is_directory && IsDataDirectoryName(entry.name);
    const bool is_set_aside =
        is_data ? !named.contains(entry.name) && (!set_aside || set_aside->contains(entry.name))
                : IsOfQuarantine(found, entry.name);
    if (is_set_aside) {
      VARVE_RETURN_IF_ERROR(with_quarantine ? storage.Remove(place) : Status::Ok());
      continue;
    }
    if (is_data && !named.contains(entry.name)) {
      std::int64_t modified_ns = 0;
      const auto bytes = BytesIn(storage, place, &modified_ns);
      if (!bytes.ok() || !IsDeadByAge(storage, path, modified_ns)) {
        continue;
      }
    }
    VARVE_RETURN_IF_ERROR(storage.Remove(place));
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Commit>> ObjectPublisher::Begin(const std::string& path,
                                                       const CommitTerms& terms) {
  return terms.index.fixed ? BeginFixedCommit(storage_, path, terms)
                           : BeginIndexCommit(storage_, path, terms);
}

Status RemoveRecordsBelow(Storage& storage, const std::string& path, std::uint64_t end) {
  VARVE_ASSIGN_OR_RETURN(const Found found, Look(storage, path));
  std::set<std::string> kept;
  for (auto record = found.records.lower_bound(end); record != found.records.end(); ++record) {
    kept.insert(record->second.directory);
  }
  for (const auto& [number, record] : found.records) {
    if (number >= end) {
      break;
    }
    // A quarantine of it that was interrupted has no effect: the record was still there.
    for (const std::string& name :
         {QuarantinedRecordName(record.save_id), QuarantineReasonName(record.save_id)}) {
      VARVE_RETURN_IF_ERROR(IsOfQuarantine(found, name) ? storage.Remove(JoinPath(path, name))
                                                        : Status::Ok());
    }
    VARVE_RETURN_IF_ERROR(storage.Remove(JoinPath(path, RecordName(number))));
    if (!kept.contains(record.directory)) {
      VARVE_RETURN_IF_ERROR(RemoveNamed(storage, path, record));
    }
  }
  return Status::Ok();
}

/// What is not part of the checkpoint goes too, and is listed. There are no locks of readers.
Result<RemovalReport> ObjectPublisher::Remove(const std::string& path, const RemovalTerms& terms,
                                              Readers /*readers*/) {
  const auto entries = storage_.List(path);
  if (entries.status().code() == StatusCode::kNotFound) {
    return NotFound("remove " + path + ": there is nothing of that name");
  }
  if (!entries.ok() && storage_.OpenForRead(path).ok()) {
    return FailedPrecondition("remove " + path +
                              ": it is one object and no directory; the store's own tools remove "
                              "checkpoints of one file");
  }
  VARVE_RETURN_IF_ERROR(entries.status());
  // Of this one list: the data of a save that is published after it are those of no record here,
  // and stay as those of a save under way do.
  VARVE_ASSIGN_OR_RETURN(const Found found, LookAt(storage_, path, *entries));
  const bool is_checkpoint = IsCheckpoint(storage_, path, *entries);
  if (!is_checkpoint && found.quarantined.empty()) {
    return FailedPrecondition("remove " + path + ": it is not a checkpoint; nothing was removed");
  }
  // Asked after the list: what is removed is what was judged, or older.
  VARVE_RETURN_IF_ERROR(terms.still_goes ? terms.still_goes() : Status::Ok());
  RemovalReport report;
  std::int64_t modified_ns = 0;
  VARVE_ASSIGN_OR_RETURN(report.bytes, BytesIn(storage_, path, &modified_ns));
  OwnNames names(storage_, path, *entries);
  VARVE_RETURN_IF_ERROR(names.status());
  if (NewestRecord(*entries) > 0 || !found.indexed.empty()) {
    VARVE_RETURN_IF_ERROR(AddOthers(storage_, path, "", found, &names, &report.others));
    VARVE_RETURN_IF_ERROR(CheckNoneBelow(storage_, path, report.others));
  }
  if (terms.dry_run == DryRun::kYes) {
    return report;
  }
  // The highest number goes last: until then it is what readers find, whole.
  std::vector<std::string> indexes;
  for (const DirectoryEntry& entry : *entries) {
    if (!entry.is_directory && names.IsIndex(entry.name)) {
      indexes.push_back(entry.name);
    }
  }
  std::sort(indexes.begin(), indexes.end(), [](const std::string& a, const std::string& b) {
    return RecordNumber(a).value_or(0) < RecordNumber(b).value_or(0);
  });
  for (const std::string& index : indexes) {
    VARVE_RETURN_IF_ERROR(storage_.Remove(JoinPath(path, index)));
  }
  const Status status = RemoveRest(storage_, path, *entries, found, !is_checkpoint);
  return status.ok() ? Result<RemovalReport>(std::move(report))
                     : status.Annotate("remove " + path +
                                       ": it is no checkpoint any more, but files of it are left");
}

namespace {

Status CollectIn(const std::string& path, DryRun dry_run, Storage& storage,
                 const std::stop_token& stop, GarbageReport* report) {
  VARVE_ASSIGN_OR_RETURN(const Found found, Look(storage, path));
  if (found.claimed) {
    VARVE_RETURN_IF_ERROR(CollectUpload(path, dry_run, storage, stop, report));
  }
  const auto remove = [&](const std::string& name) -> Status {
    VARVE_RETURN_IF_ERROR(CheckStop(stop));
    report->removed.push_back(JoinPath(path, name));
    return dry_run == DryRun::kYes ? Status::Ok() : storage.Remove(JoinPath(path, name));
  };
  VARVE_ASSIGN_OR_RETURN(const bool whole, NewestIsWhole(storage, path, found));
  if (!found.records.empty() && !whole) {
    return Status::Ok();  // An older one may be the only checkpoint there is.
  }
  std::set<std::string> named = found.indexed;
  for (auto record = found.records.begin(); record != found.records.end(); ++record) {
    if (std::next(record) == found.records.end()) {
      named.insert(record->second.directory);
    } else {
      VARVE_RETURN_IF_ERROR(remove(RecordName(record->first)));
    }
  }
  const auto set_aside = DirectoriesInQuarantine(found);
  if (!found.unreadable.empty() || !set_aside) {
    return Status::Ok();  // It may name any of the directories.
  }
  for (const std::string& directory : found.directories) {
    if (named.contains(directory) || set_aside->contains(directory)) {
      continue;
    }
    std::int64_t modified_ns = 0;
    const std::string place = JoinPath(path, directory);
    const auto bytes = BytesIn(storage, place, &modified_ns);
    if (bytes.status().code() == StatusCode::kNotFound) {
      continue;  // Removed since.
    }
    VARVE_RETURN_IF_ERROR(bytes.status());
    if (!IsDeadByAge(storage, path, modified_ns)) {
      report->kept.push_back(place);
      continue;
    }
    report->bytes += *bytes;
    VARVE_RETURN_IF_ERROR(remove(directory));
  }
  return Status::Ok();
}

/// Returns true for a file of a data directory, or of a folder in one.
bool IsInDataDirectory(const std::string& name) {
  const std::string folder = ParentPath(name);
  return IsDataDirectoryName(BaseName(folder)) || IsDataDirectoryName(BaseName(ParentPath(folder)));
}

/// Removes the beginnings of files of saves that died: data files that no save can still be
/// writing.
Status CollectUnfinished(const std::string& directory, DryRun dry_run, Storage& storage,
                         const std::stop_token& stop, GarbageReport* report) {
  ConditionalWrites& writes = *storage.extras().conditional_writes;
  VARVE_ASSIGN_OR_RETURN(const auto unfinished, writes.ListUnfinished(directory));
  for (const ConditionalWrites::Unfinished& file : unfinished) {
    if (!IsInDataDirectory(file.name) && !IsRankFileName(BaseName(file.name))) {
      continue;  // Not Varve's.
    }
    if (!IsDeadByAge(storage, directory, file.begun_ns)) {
      report->kept.push_back(file.name);
      continue;
    }
    VARVE_RETURN_IF_ERROR(CheckStop(stop));
    report->removed.push_back(file.name);
    VARVE_RETURN_IF_ERROR(dry_run == DryRun::kYes ? Status::Ok() : writes.RemoveUnfinished(file));
  }
  return Status::Ok();
}

/// Removes what saves left beside their names: messages of agents, notes of failures, and files by
/// which a save that died asked the backend what it can.
Status CollectBeside(const std::string& directory, const std::vector<DirectoryEntry>& entries,
                     DryRun dry_run, Storage& storage, const std::stop_token& stop,
                     GarbageReport* report) {
  for (const DirectoryEntry& entry : entries) {
    const auto stale = ParseStaleName(entry.name);
    const bool is_probe = !entry.is_directory && entry.name.starts_with(ConditionalWrites::kProbe);
    if (!is_probe &&
        (!stale || (stale->kind != StaleKind::kChannel && stale->kind != StaleKind::kFailed))) {
      continue;
    }
    VARVE_RETURN_IF_ERROR(CheckStop(stop));
    const std::string place = JoinPath(directory, entry.name);
    std::int64_t modified_ns = entry.modified_ns;
    std::uint64_t bytes = entry.size;
    if (entry.is_directory) {
      const auto in = BytesIn(storage, place, &modified_ns);
      if (in.status().code() == StatusCode::kNotFound) {
        continue;  // Removed since.
      }
      VARVE_ASSIGN_OR_RETURN(bytes, in);
    }
    if (!IsDeadByAge(storage, directory, modified_ns)) {
      report->kept.push_back(place);
      continue;
    }
    report->removed.push_back(place);
    report->bytes += bytes;
    VARVE_RETURN_IF_ERROR(dry_run == DryRun::kYes ? Status::Ok() : storage.Remove(place));
  }
  return Status::Ok();
}

}  // namespace

/// Removes records below others and, where all in them is more than a day old by the storage's
/// clock, data directories that no record names, and what uploads left.
Result<GarbageReport> ObjectPublisher::Collect(const std::string& directory, DryRun dry_run,
                                               const std::stop_token& stop) {
  GarbageReport report;
  const auto listed = storage_.List(directory);
  if (listed.status().code() == StatusCode::kNotFound) {  // No file in it has become visible.
    VARVE_RETURN_IF_ERROR(CollectUnfinished(directory, dry_run, storage_, stop, &report));
    return report.removed.empty() && report.kept.empty() ? Result<GarbageReport>(listed.status())
                                                         : Result<GarbageReport>(report);
  }
  VARVE_RETURN_IF_ERROR(listed.status());
  const std::vector<DirectoryEntry>& entries = *listed;
  VARVE_RETURN_IF_ERROR(CollectIn(directory, dry_run, storage_, stop, &report));
  VARVE_RETURN_IF_ERROR(CollectBeside(directory, entries, dry_run, storage_, stop, &report));
  for (const DirectoryEntry& entry : entries) {
    if (entry.is_directory && !IsDataDirectoryName(entry.name) && !IsOfRun(entry.name) &&
        !ParseStaleName(entry.name)) {
      VARVE_RETURN_IF_ERROR(
          CollectIn(JoinPath(directory, entry.name), dry_run, storage_, stop, &report));
    }
  }
  VARVE_RETURN_IF_ERROR(CollectUnfinished(directory, dry_run, storage_, stop, &report));
  return report;
}

}  // namespace varve
