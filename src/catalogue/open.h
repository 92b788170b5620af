/// Finding the checkpoint behind a path and reading its index.
#pragma once

#include <stop_token>
#include <string>

#include "catalogue/opened.h"
#include "format/commit_record.h"
#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// See CheckpointReader::Open.
Result<OpenedIndex> OpenIndex(Storage& storage, const std::string& path,
                              const std::stop_token& stop = {});

/// As OpenIndex, for a path that somebody wants to be a checkpoint: if it is a directory of
/// checkpoints instead, the NotFound says how many it holds and names the newest.
Result<OpenedIndex> OpenWanted(Storage& storage, const std::string& path,
                               const std::stop_token& stop = {});

/// True when `directory` now holds the record of another save than `id`: what looks like damage to
/// a reader that opened it before is an overwrite.
bool WasReplaced(Storage& storage, const std::string& directory, const SaveId& id);

/// Reads and checks varve.json. NotFound when there is none.
Result<CommitRecord> ReadCommitRecord(Storage& storage, const std::string& directory);

}  // namespace varve
