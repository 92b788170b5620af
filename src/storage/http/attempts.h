/// Sends one request as often as its answers and a policy ask for it, and waits in between.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "storage/http/retry.h"
#include "storage/http/transport.h"
#include "varve/status.h"

namespace varve::http {

/// One request, as often as it is sent.
struct Attempts {
  std::function<std::string()> name;  ///< Returns "GET s3://bucket/key", for events.
  RetryPolicy policy;
  bool* tried_before = nullptr;  ///< Set where a try had no certain end. May be null.
};

/// Sends the request once and says what came of it in its parameter.
using SendFunction = std::function<Result<HttpResponse>(Answer*)>;

/// Calls `send` until its answer is good or final, or the policy's time limit has passed. Every
/// repetition is an event of the level WARNING. Blocks for the waits between. Errors: those of the
/// last try; Cancelled within about 0.1 s of the calling thread's CurrentStop during a wait.
Result<HttpResponse> SendUntilAnswered(const Attempts& attempts, const SendFunction& send);

/// Returns how long a server asks to wait: whole seconds, or the time until an HTTP date by its own
/// clock (RFC 9110, section 10.2.3). Nothing where it does not ask, or for more than an hour.
std::optional<std::chrono::milliseconds> RetryAfter(const HttpResponse& response);

}  // namespace varve::http
