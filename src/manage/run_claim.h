/// The right to be the one job of a run where there are no locks. The account is in run_claim.cc.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "varve/manage.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Takes the run, from the job that has it. See LockRun.
Result<std::unique_ptr<RunLock>> ClaimRun(Storage& storage, ConditionalWrites& writes,
                                          const std::string& run, std::string_view holder);

}  // namespace varve
