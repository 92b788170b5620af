/// Writing a staged save, and writing it again when that has failed for a cause that may pass.
#pragma once

#include <string_view>

#include "save/session.h"
#include "varve/async_save.h"

namespace varve {

/// Calls the session's Write, and repeats it up to `retries` times if it failed for want of space
/// or storage and all ranks agree. They must agree, for a rank that was lost does not come. Does
/// not throw. Errors: as Write; the last attempt's.
Result<AsyncSaveReport> WriteWithRetries(SaveSession& session, StagedFile* staged,
                                         Coordinator& coordinator, std::string_view path,
                                         const StagedSaveOptions& options, const Status& ready);

}  // namespace varve
