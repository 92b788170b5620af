/// Which of their deferred saves the agents write when the trainers have ended.
#pragma once

#include <functional>
#include <vector>

#include "async/submission.h"
#include "plan/file_plan.h"
#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// The deferred saves that this rank's agent has.
struct KeptSaves {
  FileIdentity rank;  ///< Of any of them.
  DeferredGroup group;
  std::vector<SaveId> ids;  ///< Newest first.
};

/// Returns the saves that the agents of all ranks have, newest first. `give_up` as in
/// MakeFileChannel. Errors, which the other ranks learn of: Unavailable.
Result<std::vector<SaveId>> AgreeOnDeferred(const KeptSaves& mine, Storage& storage,
                                            const std::function<Status()>& give_up);

}  // namespace varve
