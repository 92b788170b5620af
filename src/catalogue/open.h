/// The search for the checkpoint behind a path, and the reading of its index.
#pragma once

#include <stop_token>
#include <string>
#include <string_view>

#include "catalogue/family.h"
#include "catalogue/opened.h"
#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// See CheckpointReader::Open.
Result<OpenedIndex> OpenIndex(Storage& storage, const std::string& path,
                              const std::stop_token& stop = {});

/// Does the same as OpenIndex for a path that a user has named. If the path is a directory of
/// checkpoints, the NotFound says how many it holds and names the newest.
Result<OpenedIndex> OpenWanted(Storage& storage, const std::string& path,
                               const std::stop_token& stop = {});

/// Returns the path of a checkpoint for messages: the file of one that was opened as a file, else the
/// checkpoint's own directory.
std::string PathOf(const OpenedIndex& index);

/// Returns true when the directory of an index that was opened before no longer holds that save,
/// but another or none: what looks like damage is an overwrite, which may just have moved the old
/// checkpoint aside, or a removal. Of other software's formats, which do not name a save, the index
/// tells, as far as it has checksums, shapes or sizes that differ.
bool WasReplaced(Storage& storage, const OpenedIndex& index);

/// Returns the status of a read; FailedPrecondition in place of damage where WasReplaced. A file that
/// is not there is damage.
Status UnlessReplaced(const Status& read, Storage& storage, const OpenedIndex& index);

/// Opens the checkpoint of a record, which is in the directory `path`, or is `path` where it was
/// named itself. Errors: DataLoss where the manifest is not the one that the record commits to.
Result<OpenedIndex> OpenRecord(Storage& storage, const std::string& path, CommitRecord record);

inline constexpr std::string_view kRepairHint = "; `varve repair` rebuilds it from the data files";

}  // namespace varve
