/// The records of checkpoints that are published by them (index_commit.cc).
#pragma once

#include <cstdint>
#include <string>

#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Removes the commit records of `path` with numbers below `end`, from the lowest on, and then the
/// data directories that they named, unless a record that stays names them too.
Status RemoveRecordsBelow(Storage& storage, const std::string& path, std::uint64_t end);

}  // namespace varve
