/// A few threads that work through a list of jobs.
#pragma once

#include <chrono>
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

/// Does the same without a stop: on the calling thread alone while jobs take no longer than
/// `at_once`, for which the first 64 are measured together; else the rest on all threads.
Status RunThreadsWhereSlow(std::size_t job_count, int threads, std::chrono::nanoseconds at_once,
                           const std::function<Status(std::size_t)>& job);

}  // namespace varve
