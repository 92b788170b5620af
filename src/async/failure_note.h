/// Word of a save that has failed in the background.
#pragma once

#include <string>

#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Leaves word of a failure where `varve ls` finds it: whoever looks at the directory alone would
/// take the save for one that was never asked for. As well as it goes: the storage may be what
/// failed. The next save of the name removes it. Nothing is said of what was cancelled, nor of a
/// name that was taken: that is somebody else's success.
void NoteFailure(Storage& storage, const std::string& path, const Status& status);

}  // namespace varve
