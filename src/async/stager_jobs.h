/// What the calls that begin saves ask of a stager.
#pragma once

#include <memory>

#include "async/job.h"
#include "varve/async_save.h"
#include "varve/coordinator.h"

namespace varve {

/// As Stager::Make, for saves that the executor writes to this storage.
Result<std::unique_ptr<Stager>> MakeStager(const StagerOptions& options,
                                           std::unique_ptr<Coordinator> background,
                                           std::shared_ptr<SaveExecutor> executor,
                                           Storage& executors_storage);

/// Returns where a job of this stager is made.
JobPlace PlaceFor(Stager& stager, Storage& storage, int rank);

/// Plans `job` with the other ranks, and copies or queues it: all that the call does. A job that
/// fails on the way is complete when this returns.
void StartJob(Stager& stager, const std::shared_ptr<AsyncJob>& job, Coordinator& coordinator);

}  // namespace varve
