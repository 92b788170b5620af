// The index of a checkpoint, made again from the headers of its data files.
//
// Where checkpoints are published by their record (index_commit.cc), NAME has records varve-N.json
// and each save's files lie in a directory of their own, NAME/varve-data-<id>:
//
//  1. An intact record says which directory is the checkpoint's. Without one it is the directory
//     with the newest complete set of files. A save that lives may have one too: step 3 settles
//     who is first.
//  2. Replace manifest.bin there by one write. Readers see the old one or the new one, whole. The
//     old one could not be read, or step 3 is left out.
//  3. Where the record is not what the files make it, write the next number, on condition that
//     no other has. A save that was published meanwhile stays, and the repair fails. A crash before
//     leaves the checkpoint as it was, and the next repair goes on.
//  4. Remove the older records, and the directories that they name.
//
// On a disk the name's lock is held meanwhile, which every save of the name takes: a save that was
// published between the look at the data files and the writing would lose its index. manifest.bin
// and then varve.json are each replaced by a rename; one that is right stays, for readers hold
// their locks on varve.json.
//
// Ranks that saved apart have no record in an object store and need none: their headers are the
// index. Repair reads them, and changes nothing.

#include <algorithm>
#include <cerrno>

#include "base/guarded.h"
#include "base/retry_time.h"
#include "base/stop.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/scan.h"
#include "catalogue/side_files.h"
#include "publish/claim.h"
#include "publish/commit.h"
#include "publish/families.h"
#include "publish/other_files.h"
#include "publish/records.h"
#include "varve/catalogue.h"
#include "varve/step_note.h"
#include "varve/storage.h"

namespace varve {
namespace {

/// Returns the set of files that is the checkpoint: the record's where that can be read, else the
/// newest complete one; null where no set is complete.
const FileGroup* Chosen(const ScanResult& scan, const Result<CommitRecord>& record) {
  for (const FileGroup& group : scan.groups) {
    if (record.ok() ? group.save_id == record->save_id : group.complete()) {
      return group.complete() ? &group : nullptr;
    }
  }
  return nullptr;
}

Result<ScanResult> Scan(Storage& storage, const std::string& directory,
                        const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(ScanResult scan, ScanDataFiles(storage, directory, stop));
  if (!scan.unread.empty()) {
    return scan.unread.front().why.Annotate("repair needs every data file's header; cannot use");
  }
  return scan;
}

/// Returns the note of a step in a checkpoint whose record is lost; nothing where there is none.
/// Without it the step would lose its place in the run, and be taken for newer than it is.
std::vector<StoredFile> NoteIn(Storage& storage, const std::string& directory) {
  constexpr std::uint64_t kMaxNoteBytes = std::uint64_t{1} << 20;
  const std::string name(kStepNoteName);
  const auto text = ReadWholeFile(storage, JoinPath(directory, name), kMaxNoteBytes);
  return text.ok() && DecodeStepNote(*text).ok() ? DescribeSideFiles({SideFile{name, *text}})
                                                 : std::vector<StoredFile>();
}

/// Makes the index of what lies in `directory`.
Result<Metadata> Rebuild(Storage& storage, const ScanResult& scan, const std::string& directory,
                         const Result<CommitRecord>& record) {
  if (scan.groups.empty()) {
    return NotFound(directory +
                    ": there are no data files of a native checkpoint, of which alone an "
                    "index can be made again");
  }
  const FileGroup* const chosen = Chosen(scan, record);
  if (chosen == nullptr) {
    const FileGroup* incomplete = &scan.groups.front();
    for (const FileGroup& group : scan.groups) {
      incomplete = record.ok() && group.save_id == record->save_id ? &group : incomplete;
    }
    return FailedPrecondition(directory + ": data files of " + NameRanks(incomplete->missing) +
                              " of a world of " + std::to_string(incomplete->world_size) +
                              " are missing");
  }
  VARVE_ASSIGN_OR_RETURN(Metadata metadata, MergeHeaders(chosen->files));
  // Data files do not name them.
  metadata.side_files = record.ok() ? record->side_files : NoteIn(storage, directory);
  return metadata;
}

/// Returns Ok for a record that was read, or is damaged or missing; else why it was not read, as
/// for a newer Varve's. The record alone names the side files.
Status CheckMayMend(const Status& record) {
  if (record.details().system_error == ENOTDIR) {
    return FailedPrecondition(
        "it is a file; an index is made for checkpoints in Varve's own format alone, which are "
        "directories");
  }
  const bool is_damage =
      record.code() == StatusCode::kDataLoss || record.code() == StatusCode::kNotFound;
  return is_damage ? Status::Ok() : CopyOf(record);
}

/// Returns true where the checkpoint has this index already, and it can be read. Errors:
/// Unimplemented for the index of a newer Varve.
Result<bool> IsIndexed(Storage& storage, const std::string& path, const Metadata& metadata) {
  const auto current = OpenIndex(storage, path);
  if (current.status().code() == StatusCode::kUnimplemented) {
    return current.status();
  }
  return current.ok() && current->record && current->metadata == WithoutHashes(metadata);
}

/// Returns the data directory in `path` with the newest complete set of files, by its name.
Result<std::string> NewestDirectory(Storage& storage, const std::string& path,
                                    const std::vector<DirectoryEntry>& entries,
                                    const std::stop_token& stop) {
  std::string newest;
  std::uint64_t created = 0;
  Status why = NotFound(path + ": there are no data files");
  for (const DirectoryEntry& entry : entries) {
    if (!entry.is_directory || !IsDataDirectoryName(entry.name)) {
      continue;
    }
    const std::string directory = JoinPath(path, entry.name);
    const Result<CommitRecord> none = NotFound(path);
    const auto scan = Scan(storage, directory, stop);
    VARVE_RETURN_IF_ERROR(CheckStop(stop));
    const FileGroup* const group = scan.ok() ? Chosen(*scan, none) : nullptr;
    if (group == nullptr) {
      why = scan.ok() ? Rebuild(storage, *scan, directory, none).status() : scan.status();
    } else if (newest.empty() || group->created_ns > created) {
      newest = entry.name;
      created = group->created_ns;
    }
  }
  return newest.empty() ? Result<std::string>(std::move(why)) : newest;
}

}  // namespace

Result<RepairReport> ObjectPublisher::RepairIndex(const std::string& path,
                                                  const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage_.List(path));
  const auto record = ReadCommitRecord(storage_, path);
  VARVE_RETURN_IF_ERROR(CheckMayMend(record.status()));
  const bool apart = std::none_of(entries.begin(), entries.end(), [](const DirectoryEntry& entry) {
    return IsDataDirectoryName(entry.name);
  });
  if (!record.ok() && apart && !GroupByName(entries).empty()) {
    VARVE_ASSIGN_OR_RETURN(const ScanResult scan, Scan(storage_, path, stop));
    VARVE_ASSIGN_OR_RETURN(const Metadata metadata, Rebuild(storage_, scan, path, record));
    return RepairReport{metadata.save_id, metadata.files.size(), false};
  }
  std::string name = record.ok() ? record->directory : std::string();  // Step 1.
  if (name.empty()) {
    VARVE_ASSIGN_OR_RETURN(name, NewestDirectory(storage_, path, entries, stop));
  }
  const std::string directory = JoinPath(path, name);
  VARVE_ASSIGN_OR_RETURN(const ScanResult scan, Scan(storage_, directory, stop));
  VARVE_ASSIGN_OR_RETURN(const Metadata metadata, Rebuild(storage_, scan, directory, record));
  RepairReport report{metadata.save_id, metadata.files.size(), true};
  VARVE_ASSIGN_OR_RETURN(const bool is_indexed, IsIndexed(storage_, path, metadata));
  if (is_indexed) {
    report.changed = false;
    return report;
  }
  VARVE_RETURN_IF_ERROR(CheckStop(stop));
  VARVE_RETURN_IF_ERROR(writes().Prepare(ParentPath(path)).status());
  VARVE_ASSIGN_OR_RETURN(const auto index, NativeIndex(metadata));
  VARVE_ASSIGN_OR_RETURN(CommitRecord made, DecodeCommitRecord(index.back().content));
  made.directory = name;
  VARVE_RETURN_IF_ERROR(  // Step 2.
      writes().Replace(JoinPath(directory, kManifestName), index.front().content));
  if (record.ok() && *record == made) {
    return report;
  }
  const std::uint64_t number = NewestRecord(entries) + 1;  // Step 3.
  const Status written =
      writes().WriteIfAbsent(JoinPath(path, RecordName(number)), EncodeCommitRecord(made));
  if (written.code() == StatusCode::kAlreadyExists) {
    return FailedPrecondition("a save of this name was published meanwhile; it stays");
  }
  VARVE_RETURN_IF_ERROR(written);
  BestEffort([&] { return RemoveRecordsBelow(storage_, path, number); });  // Step 4.
  return report;
}

Result<RepairReport> FileSystemPublisher::RepairIndex(const std::string& path,
                                                      const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const auto lock, LockUnlessSaved(storage_, path));
  const auto record = ReadCommitRecord(storage_, path);
  VARVE_RETURN_IF_ERROR(CheckMayMend(record.status()));
  VARVE_ASSIGN_OR_RETURN(const ScanResult scan, Scan(storage_, path, stop));
  VARVE_ASSIGN_OR_RETURN(const Metadata metadata, Rebuild(storage_, scan, path, record));
  RepairReport report{metadata.save_id, metadata.files.size(), true};
  VARVE_ASSIGN_OR_RETURN(const bool is_indexed, IsIndexed(storage_, path, metadata));
  if (is_indexed) {
    report.changed = false;
    return report;
  }
  VARVE_RETURN_IF_ERROR(CheckStop(stop));
  VARVE_RETURN_IF_ERROR(ReplaceIndex(storage_, path, metadata));
  if (const auto found = TakeInventory(storage_, path); found.ok() && !record.ok()) {
    for (const OtherFile& file : found->others) {
      if (!file.is_directory && file.name != kPinName) {
        report.others.push_back(file.name);
      }
    }
  }
  return report;
}

Result<RepairReport> Repair(const std::string& given, Storage& storage, const std::stop_token& stop,
                            LostRecord lost) {
  VARVE_ASSIGN_OR_RETURN(const std::string path, ResolveTarget(given, storage));
  if (ParseStaleName(BaseName(path))) {
    return FailedPrecondition("repair " + path +
                              ": it is what a save or a removal has left, and no checkpoint; "
                              "`varve gc` looks after it");
  }
  if (lost == LostRecord::kRefuse) {
    VARVE_RETURN_IF_ERROR(ReadCommitRecord(storage, path).status().Annotate("repair " + path));
  }
  return PublisherOf(storage, path)->RepairIndex(path, stop).Annotate("repair " + path);
}

}  // namespace varve
