/// The removal of replaced checkpoints, and of what dead saves have left.
#pragma once

#include <stop_token>
#include <string>
#include <vector>

#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Removes the checkpoint in `replaced`, in whose place the one in `directory` stands. Files that
/// are not part of it are moved to `directory` unless they are there already. A file whose name is
/// taken there, or that has no place to go because there is no `directory`, stays where it is: its
/// path is appended to `*conflicts`. Can be repeated after a crash at any point, and after the
/// Cancelled that it returns on `stop`.
Status RemoveReplaced(Storage& storage, const std::string& replaced, const std::string& directory,
                      std::vector<std::string>* conflicts, const std::stop_token& stop = {});

/// Removes a directory with all that is in it, as Storage::Remove does, and looks at `stop` before
/// each file. With a `busy_share` below 1 it rests after each file, so that it is busy for that
/// share of the time. Errors: Cancelled; then the rest is still there.
Status RemoveTree(Storage& storage, const std::string& path, const std::stop_token& stop,
                  double busy_share = 1.0);

/// Does the same as RemoveReplaced with what a dead save of `directory` left under the hidden name
/// `stale`: a replaced checkpoint or a staging directory. The caller holds the name's lock and has
/// synced the directory of both: a power cut must not give a name back to a directory that is being
/// emptied.
Status RemoveStale(Storage& storage, const std::string& stale, const std::string& directory,
                   std::vector<std::string>* conflicts, const std::stop_token& stop = {});

/// Does the same with everything that dead saves of `path` left beside it. The caller holds the
/// name's lock. A displaced checkpoint is removed only if `path` holds one. What stands under the
/// path `kept` stays.
Status RemoveStaleOf(Storage& storage, const std::string& path, std::vector<std::string>* conflicts,
                     const std::string& kept = {});

/// Puts a checkpoint that an interrupted overwrite displaced back under its name, if nothing or
/// an empty directory has that. The caller holds the name's lock.
Status RecoverDisplaced(Storage& storage, const std::string& path);

}  // namespace varve
