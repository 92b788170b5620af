/// What the calls that begin saves ask of a stager.
#pragma once

#include <memory>

#include "async/job.h"
#include "varve/async_save.h"
#include "varve/coordinator.h"

namespace varve {

/// Returns where a job of this stager is made.
JobPlace PlaceFor(Stager& stager, Storage& storage, int rank);

/// Plans `job` with the other ranks, and copies or queues it: all that the call does. A job that
/// fails on the way is complete when this returns.
void StartJob(Stager& stager, const std::shared_ptr<AsyncJob>& job, Coordinator& coordinator);

}  // namespace varve
