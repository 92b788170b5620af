/// Checkpoints on storages that cannot list a directory: what is looked for there, by name.
#pragma once

#include <string>
#include <vector>

#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Returns what a listing of the directory would hold of the names that checkpoints of other
/// software are recognised by, sorted; asks the storage for each, in the order of the table of
/// formats, and stops at the first. Names with a rank's number come last, for few checkpoints have
/// them: parts that are numbered from 0 on are followed to the first that is missing. A name that
/// the storage refuses to tell of counts as missing. Errors: NotFound where there is none, saying
/// what was looked for and what cannot be found without a list; those of the storage where it does
/// not answer.
Result<std::vector<DirectoryEntry>> KnownEntries(Storage& storage, const std::string& directory);

}  // namespace varve
