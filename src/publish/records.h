/// The removal of checkpoints that are published by their record (record_commit.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>

#include "varve/catalogue.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Removes the commit records of `path` with numbers below `end`, from the lowest on, and then the
/// data directories that they named, unless a record that stays names them too.
Status RemoveRecordsBelow(Storage& storage, const std::string& path, std::uint64_t end);

/// See RemoveCheckpoint. What is not part of the checkpoint stays and is listed.
/// `still_goes`, where given, is asked once the directory is listed: its error ends the removal.
Result<RemovalReport> RemoveByRecords(const std::string& path, DryRun dry_run, Storage& storage,
                                      const std::function<Status()>& still_goes = {});

/// See CollectGarbage. Removes records below others and, where all in them is more than a day old
/// by the storage's clock, data directories that no record names, and what uploads left.
Result<GarbageReport> CollectByRecords(const std::string& directory, DryRun dry_run,
                                       Storage& storage, const std::stop_token& stop);

}  // namespace varve
