#include "storage/http/attempts.h"

#include <charconv>
#include <cstdint>
#include <ctime>
#include <utility>

#include <curl/curl.h>

#include "base/events.h"
#include "base/stop.h"
#include "base/time_source.h"
#include "varve/stop.h"

namespace varve::http {
namespace {

/// Waits for a retry. Errors: Cancelled.
Status SleepUnlessStopped(std::chrono::milliseconds wait) {
  constexpr std::chrono::milliseconds kStep{100};
  const std::stop_token stop = CurrentStop();
  for (; wait > kStep && !stop.stop_requested(); wait -= kStep) {
    SleepFor(kStep);
  }
  VARVE_RETURN_IF_ERROR(CheckStop(stop));
  SleepFor(wait);
  return Status::Ok();
}

void ReportRetry(const Attempts& attempts, const Status& failure, const RequestState& state) {
  ReportEvent([&] {
    const std::string when = state.is == RequestAction::kWait
                                 ? "in " + std::to_string(state.wait.count()) + " ms"
                                 : "for the region or the time that the server names";
    return Event{
        .level = EventLevel::kWarning,
        .message = failure.message() + "; tried again " + when,
        .fields = {{"request", attempts.name()}, {"failures", std::to_string(state.failures)}}};
  });
}

}  // namespace

std::optional<std::chrono::milliseconds> RetryAfter(const HttpResponse& response) {
  const std::string text(response.Header("retry-after"));
  std::int64_t seconds = 0;
  constexpr std::int64_t kMost = 3600;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, seconds);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    const std::time_t until = ::curl_getdate(text.c_str(), nullptr);
    const std::time_t there = ::curl_getdate(std::string(response.Header("date")).c_str(), nullptr);
    if (until < 0) {
      return std::nullopt;
    }
    seconds = until - (there > 0 ? there : UnixSeconds());
  }
  return seconds >= 0 && seconds <= kMost
             ? std::optional<std::chrono::milliseconds>(std::chrono::seconds(seconds))
             : std::nullopt;
}

Result<HttpResponse> SendUntilAnswered(const Attempts& attempts, const SendFunction& send) {
  RequestState state;
  std::optional<TimePoint> first_failure;
  while (true) {
    Answer answer;
    auto response = send(&answer);
    if (answer.is == AnswerKind::kTransient && attempts.tried_before != nullptr) {
      *attempts.tried_before = true;
    }
    if (answer.is == AnswerKind::kTransient && !first_failure) {
      first_failure = Now();
    }
    const auto elapsed = first_failure ? Now() - *first_failure : TimePoint::duration::zero();
    state = Step(state, answer, attempts.policy, RandomNumber(),
                 std::chrono::duration_cast<std::chrono::milliseconds>(elapsed));
    if (state.is == RequestAction::kDone) {
      return response;
    }
    if (state.is == RequestAction::kFailed) {
      return state.failures < 2
                 ? response.status()
                 : response.status().Annotate("given up after " + std::to_string(state.failures) +
                                              " tries");
    }
    ReportRetry(attempts, response.status(), state);
    if (state.is == RequestAction::kWait) {
      VARVE_RETURN_IF_ERROR(SleepUnlessStopped(state.wait));
      state = TimePassed(state);
    }
  }
}

}  // namespace varve::http
