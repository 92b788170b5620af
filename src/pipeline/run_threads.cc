#include "pipeline/run_threads.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace varve {
namespace {

/// A job that finds no memory is an error like another: thrown out of a thread it would end the
/// process.
Status RunOne(const std::function<Status(std::size_t)>& job, std::size_t i) {
  try {
    return job(i);
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfSpace, "the system has no memory left"};
  }
}

}  // namespace

Status RunThreads(std::size_t job_count, int threads, const std::stop_token& stop,
                  const std::function<Status(std::size_t)>& job) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  Status first;
  const auto work = [&] {
    for (std::size_t i = next++; i < job_count && !failed; i = next++) {
      Status status =
          stop.stop_requested() ? Status(StatusCode::kCancelled, "read cancelled") : RunOne(job, i);
      if (!status.ok()) {
        const std::scoped_lock lock(mutex);
        if (first.ok()) {
          first = std::move(status);
        }
        failed = true;
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    const std::size_t count = std::min(static_cast<std::size_t>(std::max(threads, 1)), job_count);
    bool more = true;
    for (std::size_t i = 1; i < count && more; ++i) {
      try {
        helpers.emplace_back(work);
      } catch (const std::system_error&) {
        more = false;  // The system has no more threads: those there are do it.
      }
    }
    work();
  }
  return first;
}

}  // namespace varve
