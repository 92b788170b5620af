/// The headers of a directory's data files: rank-local saves are found by them, and lost manifests
/// rebuilt from them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "format/manifest.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// The files of one save found in a directory.
struct FileGroup {
  SaveId save_id;
  std::uint32_t world_size = 0;
  /// Of rank 0's file, which does not change when more files come; the latest where that is
  /// missing.
  std::uint64_t created_ns = 0;
  std::vector<CheckedHeader> files;    ///< By rank.
  std::vector<std::uint32_t> missing;  ///< Ranks without a file.
  [[nodiscard]] bool complete() const { return missing.empty(); }
  [[nodiscard]] bool has_rank_0() const {
    return !files.empty() && files.front().header.identity.rank == 0;
  }
};

/// A data file whose header could not be read: damaged, of a newer version, removed meanwhile.
struct UnreadFile {
  std::string name;
  Status why;
};

struct ScanResult {
  std::vector<FileGroup> groups;  ///< Newest first; of equal ones that with the lower id.
  std::vector<UnreadFile> unread;
};

/// The data files of one save, as their names tell it.
struct NamedSet {
  std::string save;  ///< First digits of the save id; empty where the save was coordinated.
  std::uint32_t world_size = 0;
  std::map<std::uint32_t, std::string> files;  ///< Names by rank.
  /// Returns true when all ranks' files are there. A file has its name once it is whole, so such a
  /// save succeeded.
  [[nodiscard]] bool complete() const { return files.size() == world_size; }
};

/// Groups the data files among `entries` by their names and reads nothing. Names that are not
/// written by Varve are left out.
std::vector<NamedSet> GroupByName(const std::vector<DirectoryEntry>& entries);

/// Returns true for the names that DataFileName gives to the files of ranks that save apart.
bool IsRankFileName(std::string_view name);

/// Returns the digits of `id` that names of data files carry.
std::string NamedSave(const SaveId& id);

/// Reads and decodes the header of every data file in `directory`. Errors: the directory cannot
/// be listed; Cancelled on `stop`.
Result<ScanResult> ScanDataFiles(Storage& storage, const std::string& directory,
                                 const std::stop_token& stop = {});

/// Reads and decodes the headers of the files of one set. Errors: Cancelled on `stop`.
Result<ScanResult> ScanSet(Storage& storage, const std::string& directory, const NamedSet& set,
                           const std::stop_token& stop);

/// Reads and decodes the header of the data file `name`. Errors: why it cannot be read.
Status TryHeader(Storage& storage, const std::string& directory, const std::string& name);

/// Returns the Unix time at which the save in `directory` began, by the header of one of its files.
/// Nothing where there is no such file, or none in Varve's own format.
std::optional<std::uint64_t> BeginningOfSave(Storage& storage, const std::string& directory);

/// Returns a text that tells a checkpoint from every other that may have its name: its save, or in
/// another format the names, sizes and times of its files. Empty where there is none. Errors: those
/// of the storage.
Result<std::string> OccupantOf(Storage& storage, const std::string& directory);
/// Returns that of a checkpoint of Varve's own format.
std::string OccupantOf(const SaveId& id);

/// Reads a data file's header bytes. Errors: DataLoss, Unavailable.
Result<std::string> ReadHeaderBytes(ReadableFile& file);

/// Returns "ranks 1, 2 and 5 more".
std::string NameRanks(const std::vector<std::uint32_t>& ranks);

}  // namespace varve
