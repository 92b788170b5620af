// Varve's own format (docs/format.md): a directory with a commit record, or with the data files of
// ranks that saved apart.

#include <algorithm>
#include <utility>
#include <vector>

#include "catalogue/formats/known_format.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/scan.h"

namespace varve {
namespace {

/// Returns the file that cannot be read of a set that may be newer than `chosen`, the newest that
/// could be read; null where there is none. A file has its name once it is whole, so a set that its
/// names show complete was saved, and the state in `chosen` may be an older one.
const UnreadFile* UnreadOfNewer(const ScanResult& scan, const FileGroup& chosen,
                                const std::vector<NamedSet>& complete) {
  for (const NamedSet& set : complete) {
    const auto read =
        std::find_if(scan.groups.begin(), scan.groups.end(), [&](const FileGroup& group) {
          return NamedSave(group.save_id) == set.save && group.world_size == set.world_size;
        });
    if (set.save.empty() ||
        (read != scan.groups.end() && (read->complete() || read->created_ns < chosen.created_ns))) {
      continue;
    }
    for (const UnreadFile& file : scan.unread) {
      const bool was_removed = file.why.code() == StatusCode::kNotFound;  // By an overwrite.
      if (!was_removed && std::any_of(set.files.begin(), set.files.end(), [&](const auto& named) {
            return named.second == file.name;
          })) {
        return &file;
      }
    }
  }
  return nullptr;
}

/// Returns the newest complete set of rank-local files.
Result<OpenedIndex> OpenRankLocal(Storage& storage, const std::string& directory,
                                  const std::vector<DirectoryEntry>& entries,
                                  const std::stop_token& stop) {
  std::vector<NamedSet> complete = GroupByName(entries);
  std::erase_if(complete, [](const NamedSet& set) { return !set.complete(); });
  ScanResult scan;
  if (complete.size() == 1) {  // Files of other saves need not be read.
    VARVE_ASSIGN_OR_RETURN(scan, ScanSet(storage, directory, complete.front(), stop));
  }
  if (scan.groups.empty() || !scan.unread.empty()) {
    VARVE_ASSIGN_OR_RETURN(scan, ScanDataFiles(storage, directory, stop));
  }
  for (const FileGroup& group : scan.groups) {
    if (!group.complete()) {
      continue;
    }
    if (!group.files.empty() && group.files[0].header.identity.coordinated) {
      return DataLoss(directory + ": varve.json is missing" + std::string(kRepairHint));
    }
    if (const UnreadFile* const unread = UnreadOfNewer(scan, group, complete)) {
      return unread->why.Annotate(directory +
                                  ": a set of files that may be the newest cannot be read" +
                                  " (remove its files to load the other one)");
    }
    auto metadata = MergeHeaders(group.files);
    if (!metadata.ok()) {
      return metadata.status().Annotate(directory);
    }
    OpenedIndex opened{directory, std::move(*metadata), std::nullopt};
    opened.headers_checked = true;
    return opened;
  }
  if (!scan.unread.empty()) {
    return scan.unread.front().why;
  }
  if (scan.groups.empty()) {
    return NotFound(directory + " holds no data files any more");
  }
  const FileGroup& newest = scan.groups.front();
  return FailedPrecondition(directory + " is incomplete: files of " + NameRanks(newest.missing) +
                            " of a world of " + std::to_string(newest.world_size) + " are missing")
      .With({.reason = ErrorReason::kIncomplete});
}

/// The record of a copy of a checkpoint of an object store may have a higher number than
/// varve.json, which OpenIndex has looked for.
Result<OpenedIndex> OpenNative(const ListedFolder& folder) {
  if (NewestRecord(folder.entries) == 0) {
    return OpenRankLocal(folder.storage, folder.path, folder.entries, folder.stop);
  }
  VARVE_ASSIGN_OR_RETURN(CommitRecord newest,
                         ReadNewestRecord(folder.storage, folder.path, folder.entries));
  return OpenRecord(folder.storage, folder.path, std::move(newest));
}

/// Returns what the newest record in the directory names. In a copy of a checkpoint of an object
/// store it names a directory too: then what the format owns there is the checkpoint's.
Result<std::vector<std::string>> NamesInRecord(Storage& storage, const std::string& path) {
  std::vector<std::string> names;
  if (!RecordNumber(BaseName(path))) {
    return names;
  }
  const std::string directory = ParentPath(path);
  VARVE_ASSIGN_OR_RETURN(const CommitRecord record, ReadCommitRecord(storage, directory));
  for (const StoredFile& file : record.side_files) {
    names.push_back(JoinPath(record.directory, file.name));
  }
  if (record.directory.empty()) {
    return names;
  }
  VARVE_ASSIGN_OR_RETURN(const auto below, storage.List(JoinPath(directory, record.directory)));
  for (const DirectoryEntry& entry : below) {
    if (kVarveKnown.Owns(entry.name)) {
      names.push_back(JoinPath(record.directory, entry.name));
    }
  }
  return names;
}

constexpr std::string_view kVarveIndex[] = {"varve.json", "varve-#.json", "manifest.bin"};
constexpr std::string_view kVarveNames[] = {"data-#-of-#.safetensors", "data-#-of-#-%.safetensors"};

}  // namespace

const KnownFormat kVarveKnown{.format = Format::kVarve,
                              .recognises =
                                  [](const ListedFolder& folder) {
                                    return NewestRecord(folder.entries) > 0 ||
                                           folder.Has(kVarveNames[0]) || folder.Has(kVarveNames[1]);
                                  },
                              .open = OpenNative,
                              .index = kVarveIndex,
                              .names = kVarveNames,
                              .names_in_index = NamesInRecord};

}  // namespace varve
