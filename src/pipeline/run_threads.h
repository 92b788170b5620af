/// A few threads that work through a list of jobs.
#pragma once

#include <cstddef>
#include <functional>
#include <stop_token>

#include "varve/status.h"

namespace varve {

/// Calls `job(i)` once for every i below `job_count`, in ascending order of their beginnings, on
/// the calling thread and up to `threads` - 1 others, until all are done or one has failed. Returns
/// the first error, or Cancelled on `stop`. Runs with fewer threads where the system starts no
/// more. Errors: the job's own; those of Guarded for what it throws.
Status RunThreads(std::size_t job_count, int threads, const std::stop_token& stop,
                  const std::function<Status(std::size_t)>& job);

}  // namespace varve
