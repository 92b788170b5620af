/// Verification of other software's checkpoints.
#pragma once

#include <stop_token>

#include "catalogue/open.h"
#include "varve/catalogue.h"
#include "varve/options.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Threads that read and check data.
inline constexpr int kVerifyThreads = 8;

/// See Verify. `opened` is of another format than ours. Errors: Cancelled.
Result<VerifyReport> VerifyForeign(Storage& storage, const OpenedIndex& opened,
                                   const ProgressFunction& progress, const std::stop_token& stop);

}  // namespace varve
