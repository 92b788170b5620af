/// Writing a staged save, and writing it again when that has failed for a cause that may pass; the
/// note of a save that has failed for good.
#pragma once

#include <string>
#include <string_view>

#include "save/session.h"
#include "varve/async_save.h"
#include "varve/storage.h"

namespace varve {

/// Calls the session's Write, and repeats it up to `retries` times if it failed for want of space
/// or storage and all ranks agree. They must agree, for a rank that was lost does not come. Does
/// not throw. Errors: as Write; the last attempt's.
Result<AsyncSaveReport> WriteWithRetries(SaveSession& session, StagedFile* staged,
                                         Coordinator& coordinator, std::string_view path,
                                         const StagedSaveOptions& options, const Status& ready);

/// Writes a note of a failed save beside the checkpoint's name, where `varve ls` finds it. Without
/// the note the directory shows no trace of the save. Best effort: the storage may be what failed.
/// The next save of the name removes the note. Writes nothing for a cancelled save, nor for a name
/// that another save has taken.
void NoteFailure(Storage& storage, const std::string& path, const Status& status);

}  // namespace varve
