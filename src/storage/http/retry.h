/// What is done after a request that failed: a state machine without threads, sockets and clock.
/// Pure.
///
///   kSend -- answered, good -----------------> kDone
///   kSend -- answered, final error ----------> kFailed
///   kSend -- no answer, or one that may pass -> kWait, for a random time ("full jitter")
///   kWait -- the time has passed ------------> kSend
///   kSend -- likewise, past the deadline ----> kFailed
///   kSend -- the server names another region or another time -> kSend, at once, a few times
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

namespace varve::http {

struct RetryPolicy {
  std::chrono::milliseconds first{100};
  std::chrono::milliseconds longest{20'000};
  std::chrono::milliseconds time_limit{180'000};  ///< From the first failure on.
  int most_corrections = 3;                       ///< Of region or clock.
};

enum class RequestAction : std::uint8_t { kSend, kWait, kDone, kFailed };

struct RequestState {
  RequestAction is = RequestAction::kSend;
  int failures = 0;
  int corrections = 0;
  std::chrono::milliseconds wait{0};  ///< In kWait.
};

enum class AnswerKind : std::uint8_t {
  kGood,
  kFinal,      ///< The same request would be refused again.
  kTransient,  ///< No answer, or one of a server that has too much to do.
  kCorrected,  ///< Refused for a region or a time that the answer has put right.
};

struct Answer {
  AnswerKind is = AnswerKind::kGood;
  std::optional<std::chrono::milliseconds> retry_after{};  ///< As the server asked.
};

/// Returns what an answer with this HTTP status and error code means. `status` is 0 where there was
/// no whole answer; `code` is that of the XML body, also of one with status 200.
AnswerKind Classify(int status, std::string_view code);

/// Returns the state after an answer. `random` is uniform over all values; `elapsed` is the time
/// since the first failure.
RequestState Step(RequestState state, const Answer& answer, const RetryPolicy& policy,
                  std::uint64_t random, std::chrono::milliseconds elapsed);

/// Returns the state when the time of a kWait has passed.
RequestState TimePassed(RequestState state);

}  // namespace varve::http
