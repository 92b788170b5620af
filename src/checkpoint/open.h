/// Finding the checkpoint behind a path and reading its index.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "format/commit_record.h"
#include "interop/decoded.h"
#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

struct OpenedIndex {
  std::string directory;  ///< Where the files are.
  Metadata metadata;
  std::optional<CommitRecord> record;  ///< Nothing for a set of rank-local files, and for others'.
  bool moved_aside = false;
  bool headers_checked = false;  ///< The index was made of the data files' headers.
  // What the indexes of other software hold themselves; see interop/decoded.h.
  std::optional<Value> structure{};
  std::vector<std::string> inline_values{};
  std::vector<RecordCrc> records{};  ///< By file and begin.
};

/// See CheckpointReader::Open.
Result<OpenedIndex> OpenIndex(Storage& storage, const std::string& path);

/// True when `directory` now holds the record of another save than `id`: what looks like damage to
/// a reader that opened it before is an overwrite.
bool WasReplaced(Storage& storage, const std::string& directory, const SaveId& id);

/// Reads and checks varve.json. NotFound when there is none.
Result<CommitRecord> ReadCommitRecord(Storage& storage, const std::string& directory);

}  // namespace varve
