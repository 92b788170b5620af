/// Writing a staged save, and writing it again when that has failed for a cause that may pass.
#pragma once

#include <chrono>
#include <stop_token>
#include <string_view>

#include "save/session.h"

namespace varve {

struct WriteAttempts {
  std::string_view path;  ///< Of the checkpoint; outlives the attempts.
  bool coordinate = true;
  int retries = 0;
  std::chrono::milliseconds retry_delay{0};  ///< Before the first; twice that before the second.
  std::stop_token stop;
};

/// The session's Write, repeated up to `retries` times if it failed for want of space or storage
/// and all ranks agree. They must: a rank that was lost, or is out of step, does not come. Does not
/// throw. Errors: as Write; the last attempt's.
Result<SaveReport> WriteWithRetries(SaveSession& session, StagedFile* staged,
                                    Coordinator& coordinator, const WriteAttempts& options,
                                    const Status& ready);

}  // namespace varve
