#include "storage/http/retry.h"

#include <algorithm>
#include <array>

namespace varve::http {
namespace {

constexpr std::array<std::string_view, 7> kTransientCodes = {"InternalError",
                                                             "OperationAborted",
                                                             "RequestTimeout",
                                                             "ServiceUnavailable",
                                                             "SlowDown",
                                                             "Throttling",
                                                             "ConditionalRequestConflict"};
constexpr int kMostDoublings = 20;

/// Returns a random part of a limit that doubles with each failure.
std::chrono::milliseconds Jitter(int failures, const RetryPolicy& policy, std::uint64_t random) {
  const int doublings = std::min(failures - 1, kMostDoublings);
  const auto limit = std::min(policy.first * (std::int64_t{1} << doublings), policy.longest);
  return std::chrono::milliseconds(random % (static_cast<std::uint64_t>(limit.count()) + 1));
}

constexpr int kServerError = 500;

}  // namespace

AnswerKind Classify(int status, std::string_view code) {
  if (std::find(kTransientCodes.begin(), kTransientCodes.end(), code) != kTransientCodes.end()) {
    return AnswerKind::kTransient;
  }
  if (status >= 200 && status < 300) {
    return code.empty() ? AnswerKind::kGood
                        : AnswerKind::kTransient;  // An error behind a status 200.
  }
  switch (status) {
    case 0:
    case 408:
    case 409:  // A conflict with another request: nothing has been done.
    case 429: return AnswerKind::kTransient;
    case 501:  // These say that the server cannot, now and later.
    case 505:
    case 507: return AnswerKind::kFinal;
    // Others of 500 and above may come from what stands before the server (520 to 527 of
    // Cloudflare), after the request was carried out.
    default: return status >= kServerError ? AnswerKind::kTransient : AnswerKind::kFinal;
  }
}

RequestState Step(RequestState state, const Answer& answer, const RetryPolicy& policy,
                  std::uint64_t random, std::chrono::milliseconds elapsed) {
  switch (answer.is) {
    case AnswerKind::kGood: state.is = RequestAction::kDone; return state;
    case AnswerKind::kFinal: state.is = RequestAction::kFailed; return state;
    case AnswerKind::kCorrected:
      state.is = ++state.corrections > policy.most_corrections ? RequestAction::kFailed
                                                               : RequestAction::kSend;
      return state;
    case AnswerKind::kTransient: break;
  }
  ++state.failures;
  state.wait = Jitter(state.failures, policy, random);
  if (answer.retry_after) {
    state.wait = std::max(state.wait, std::min(*answer.retry_after, policy.longest));
  }
  state.is =
      elapsed + state.wait > policy.time_limit ? RequestAction::kFailed : RequestAction::kWait;
  return state;
}

RequestState TimePassed(RequestState state) {
  state.is = RequestAction::kSend;
  state.wait = {};
  return state;
}

}  // namespace varve::http
