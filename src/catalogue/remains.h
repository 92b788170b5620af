/// Checkpoints that have lost their index and their data. A purge of a scratch disk removes files
/// and leaves directories; a removal or a copy may end halfway.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "varve/storage.h"

namespace varve {

/// Describes the rest of such a checkpoint in the directory `path`, for people. Returns nothing where
/// no checkpoint was, or one has an index or data. Storages that rename only: in an object store
/// there is no empty directory, and no commit record may mean that a save is under way.
///  - A file that only Varve writes into a checkpoint shows that one was there, whatever the user
///    has beside it: the manifest, the note of a manager, a pin, the reason of a quarantine.
///  - An empty directory with the name of a step shows it where something else tells of a run:
///    - the name is one that managers give unless told otherwise ("step-00000100"), or
///    - it has a word for a step ("ckpt-7"), and a manager's history lies beside it, or
///    - a checkpoint of Varve's, or what is left of one, of a name that begins alike, is beside it.
///    Saves and removals rename whole directories and leave no empty one, but for the name of a
///    displaced checkpoint: that gets its name back. Other software may make empty directories.
std::optional<std::string> RemainsOfCheckpoint(Storage& storage, const std::string& path);

}  // namespace varve
