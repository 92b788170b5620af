/// Data that no record names, where a save publishes by writing a record (PublishesByRecord). A
/// save under way has written them, or one that died.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "varve/catalogue.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Returns the bytes of the files below a directory. Raises `*modified_ns` to the time when the
/// last of them was written.
Result<std::uint64_t> BytesIn(Storage& storage, const std::string& directory,
                              std::int64_t* modified_ns);

/// Returns true for what was written more than a day ago by the storage's clock: without locks,
/// only such a thing counts as dead. False where the time is not known.
bool IsDeadByAge(Storage& storage, const std::string& path, std::int64_t modified_ns);

/// Returns the entry for `path`, which holds no checkpoint, where saves have written data there;
/// nothing where they have not. Its state is kStale where all of it is dead by age, else kSaving.
/// `entries` are those of `path`. Errors: those of the storage.
Result<std::optional<CheckpointEntry>> ExamineUnpublished(
    Storage& storage, const std::string& path, const std::vector<DirectoryEntry>& entries);

}  // namespace varve
