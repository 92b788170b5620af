/// The time that work which could be left undone spends on a server that does not answer.
#pragma once

#include <chrono>
#include <optional>
#include <stop_token>
#include <utility>

#include "base/guarded.h"
#include "varve/status.h"
#include "varve/stop.h"

namespace varve {

/// Bounds the time that the calling thread's storage operations spend, all together, on requests
/// that get no answer, until it is destroyed there. Answers cost nothing: on a server that works,
/// the work may take as long as it takes. Storages whose requests are repeated look at it.
class ScopedRetryTime {
 public:
  /// For work that could be left undone.
  static constexpr std::chrono::milliseconds kShort = std::chrono::seconds(30);

  /// Not more than that of a scope around it.
  explicit ScopedRetryTime(std::chrono::milliseconds in_all);
  ScopedRetryTime(const ScopedRetryTime&) = delete;
  ScopedRetryTime& operator=(const ScopedRetryTime&) = delete;
  ~ScopedRetryTime();

  [[nodiscard]] std::chrono::milliseconds left() const { return left_; }
  void Spend(std::chrono::milliseconds time);

 private:
  std::chrono::milliseconds left_;
  ScopedRetryTime* const before_;
};

/// Returns the calling thread's innermost; null where it has none.
ScopedRetryTime* CurrentRetryTime();

/// Bounds a look at what became of a request to kShort where no answer to the request came: the
/// caller has waited for that already.
class RetryTimeAfter {
 public:
  explicit RetryTimeAfter(const Status& request) {
    if (request.code() == StatusCode::kUnavailable) {
      time_.emplace(ScopedRetryTime::kShort);
    }
  }

 private:
  std::optional<ScopedRetryTime> time_;
};

/// Runs work whose failure changes nothing, the removal of what a failed save has left for example:
/// the caller must not wait once more for each of its requests where the server is lost. A stop
/// that was requested (CurrentStop) does not end it: what was stopped is what it clears up.
template <class Work>
void BestEffort(Work&& work) noexcept {
  const ScopedRetryTime bounded(ScopedRetryTime::kShort);
  const ScopedStop not_stopped{std::stop_token{}};
  (void)Guarded(std::forward<Work>(work));
}

}  // namespace varve
