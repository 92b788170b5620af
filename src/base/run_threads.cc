#include "base/run_threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "base/guarded.h"
#include "base/threads.h"
#include "base/time_source.h"
#include "varve/stop.h"

namespace varve {
Status RunThreads(std::size_t job_count, int threads, const std::stop_token& stop,
                  const std::function<Status(std::size_t)>& job) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  Status first;
  const std::stop_token current = stop.stop_possible() ? stop : CurrentStop();
  const auto work = [&] {
    const ScopedStop scoped(current);
    for (std::size_t i = next++; i < job_count && !failed; i = next++) {
      Status status = stop.stop_requested()
                          ? Status(StatusCode::kCancelled, "was interrupted while it read")
                          : Guarded([&] { return job(i); });
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
    const std::size_t wanted = IsSimulated() ? 1 : static_cast<std::size_t>(std::max(threads, 1));
    const std::size_t count = std::min(wanted, job_count);
    // Where the system starts no more threads, those there are do the work.
    (void)Guarded([&] {
      helpers.reserve(count);
      for (std::size_t i = 1; i < count; ++i) {
        helpers.push_back(StartThread<std::jthread>(work));
      }
    });
    work();
  }
  return first;
}

Status RunThreadsWhereSlow(std::size_t job_count, int threads, std::chrono::nanoseconds at_once,
                           const std::function<Status(std::size_t)>& job) {
  constexpr std::size_t kMeasured = 64;
  const auto begin = std::chrono::steady_clock::now();
  const std::size_t first = std::min(job_count, kMeasured);
  VARVE_RETURN_IF_ERROR(RunThreads(first, 1, {}, job));
  const bool slow = std::chrono::steady_clock::now() - begin > first * at_once;
  return RunThreads(job_count - first, slow ? threads : 1, {},
                    [&](std::size_t i) { return job(first + i); });
}

}  // namespace varve
