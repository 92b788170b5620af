#include "async/attempts.h"

#include <algorithm>
#include <functional>
#include <stop_token>
#include <utility>
#include <vector>

#include "base/events.h"
#include "base/guarded.h"
#include "base/time_source.h"
#include "catalogue/names.h"
#include "catalogue/open.h"

namespace varve {
namespace {

/// Timeout of the agreement about a retry: ranks start it right after they have learnt of the
/// failure.
constexpr auto kRetryAgreement = std::chrono::seconds(30);

/// Returns true for failures that may pass, but not for one that leaves a save that may be visible:
/// a second attempt would write into its files, and remove them if it fails.
bool IsWorthARetry(const Status& status) {
  if (status.details().reason == ErrorReason::kMayBeVisible) {
    return false;
  }
  return status.code() == StatusCode::kOutOfSpace || status.code() == StatusCode::kUnavailable;
}

Result<AsyncSaveReport> WriteOnce(SaveSession& session, StagedFile* staged,
                                  Coordinator& coordinator, const Status& ready) {
  return Guarded([&]() -> Result<AsyncSaveReport> {
    VARVE_ASSIGN_OR_RETURN(SaveReport saved, session.Write(coordinator, staged, ready));
    return AsyncSaveReport{std::move(saved)};
  });
}

Status AgreeToRetry(Coordinator& coordinator, std::string_view path, bool together, int attempt,
                    bool can) {
  Contribution mine = Guarded([&]() -> Contribution {
    return can ? Contribution("retry " + std::to_string(attempt))
               : FailedPrecondition("cannot write it again");
  });
  if (!together || coordinator.size() == 1) {
    return mine.status();
  }
  const auto agree = [](const std::vector<std::string>& ranks) -> Result<std::vector<std::string>> {
    for (const std::string& theirs : ranks) {
      if (theirs != ranks.front()) {
        return Unavailable("the ranks are out of step");
      }
    }
    return std::vector<std::string>(ranks.size());
  };
  return Exchange(coordinator, path, std::move(mine), Now() + kRetryAgreement, std::cref(agree))
      .status();
}

void ReportRetry(const SaveSession& session, std::string_view path, int attempt,
                 const Status& why) {
  ReportEvent([&] {
    return Event{.level = EventLevel::kWarning,
                 .rank = static_cast<int>(session.settled().identity.rank),
                 .message = "save " + std::string(path) + ": attempt " + std::to_string(attempt) +
                            " has failed and is repeated: " + why.ToString()};
  });
}

/// Returns after `time`, or soon after a stop.
void Pause(std::chrono::milliseconds time, const std::stop_token& stop) {
  constexpr TimePoint::duration kLook = std::chrono::milliseconds(20);
  for (const TimePoint end = Now() + time; Now() < end && !stop.stop_requested();) {
    SleepFor(std::min(kLook, end - Now()));
  }
}

}  // namespace

Result<AsyncSaveReport> WriteWithRetries(SaveSession& session, StagedFile* staged,
                                         Coordinator& coordinator, std::string_view path,
                                         const StagedSaveOptions& options, const Status& ready) {
  const std::stop_token& stop = options.save.stop;
  Result<AsyncSaveReport> result = WriteOnce(session, staged, coordinator, ready);
  const bool copy_is_gone = staged != nullptr && staged->in_waves();
  int attempt = 1;
  // The failure and the options are the same on all ranks: all come to the agreement, or none does.
  while (attempt <= options.retries && IsWorthARetry(result.status()) &&
         AgreeToRetry(coordinator, path, options.save.coordinate, attempt,
                      ready.ok() && !copy_is_gone && !stop.stop_requested())
             .ok()) {
    ReportRetry(session, path, attempt, result.status());
    Pause(options.retry_delay * (1 << std::min(attempt - 1, 10)), stop);
    ++attempt;
    result = WriteOnce(session, staged, coordinator, Status::Ok());
  }
  if (result.ok()) {
    result->attempts = attempt;
  } else if (attempt > 1) {
    result = Guarded([&]() -> Result<AsyncSaveReport> {
      return result.status().Annotate(std::to_string(attempt) + " attempts");
    });
  }
  return result;
}

void NoteFailure(Storage& storage, const std::string& path, const Status& status) {
  if (status.ok() || status.code() == StatusCode::kCancelled ||
      status.code() == StatusCode::kAlreadyExists) {
    return;
  }
  if (status.code() == StatusCode::kUnavailable && TellsNothing(storage, path, status)) {
    return;  // A server that did not answer is not asked again, for minutes.
  }
  // Best effort: the caller has the error.
  (void)Guarded([&] {
    const std::string note = FailedPath(path);
    (void)storage.Remove(note);
    return WriteWholeFile(storage, note, status.message());
  });
}

}  // namespace varve
