/// The note that a failed save leaves beside the checkpoint's name.
#pragma once

#include <string>

#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Writes a note of a failed save where `varve ls` finds it. Without the note the directory shows
/// no trace of the save. Best effort: the storage may be what failed. The next save of the name
/// removes the note. Writes nothing for a cancelled save, nor for a name that another save has
/// taken.
void NoteFailure(Storage& storage, const std::string& path, const Status& status);

}  // namespace varve
