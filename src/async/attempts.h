/// Writing a staged save, and writing it again when that has failed for a cause that may pass.
#pragma once

#include <chrono>
#include <stop_token>
#include <string_view>

#include "save/session.h"
#include "varve/async_save.h"

namespace varve {

struct WriteAttempts {
  std::string_view path;  ///< Path of the checkpoint; outlives the attempts.
  bool coordinate = true;
  int retries = 0;
  std::chrono::milliseconds retry_delay{0};  ///< Pause before the first retry; doubled for each
                                             ///< later one.
  std::stop_token stop;
};

/// Calls the session's Write, and repeats it up to `retries` times if it failed for want of space
/// or storage and all ranks agree. They must agree, for a rank that was lost does not come. Does
/// not throw. Errors: as Write; the last attempt's.
Result<AsyncSaveReport> WriteWithRetries(SaveSession& session, StagedFile* staged,
                                         Coordinator& coordinator, const WriteAttempts& options,
                                         const Status& ready);

}  // namespace varve
