/// Reading what the data files of a directory say of themselves: how rank-local saves are found
/// and lost manifests rebuilt.
#pragma once

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
  std::uint64_t created_ns = 0;        ///< The latest of its files.
  std::vector<CheckedHeader> files;    ///< By rank.
  std::vector<std::uint32_t> missing;  ///< Ranks without a file.
  [[nodiscard]] bool complete() const { return missing.empty(); }
};

struct ScanResult {
  std::vector<FileGroup> groups;  ///< Newest first.
  std::vector<Status> damaged;    ///< Files that could not be understood, with the reason.
};

/// Reads and decodes the header of every data file in `directory`. Errors: the directory cannot
/// be listed.
Result<ScanResult> ScanDataFiles(Storage& storage, const std::string& directory);

/// Reads a data file's header bytes. Errors: DataLoss, Unavailable.
Result<std::string> ReadHeaderBytes(ReadableFile& file);

/// "ranks 1, 2 and 5 more".
std::string NameRanks(const std::vector<std::uint32_t>& ranks);

}  // namespace varve
