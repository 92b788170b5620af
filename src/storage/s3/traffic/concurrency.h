/// How many requests may be on their way to one server at once: a state machine without threads,
/// sockets and clock. Pure.
///
/// The limit begins at the most that the settings allow. It goes up by one each time that as many
/// requests as it allows have been answered well, and is halved when the server says that it has
/// too much to do (503, 429, "SlowDown"): additive increase, multiplicative decrease, as TCP has
/// it.
///
/// A server that has too much to do refuses all that is on its way. So only the first refusal of a
/// round counts: a request that began before the limit was halved does not halve it again.
#pragma once

#include <cstdint>

namespace varve::s3 {

struct ConcurrencyState {
  int most = 1;               ///< Of the settings, >= 1.
  int limit = 1;              ///< From 1 to `most`.
  int in_flight = 0;          ///< Requests that have begun and not ended.
  int good_since_change = 0;  ///< Good answers since the limit changed.
  std::uint64_t round = 0;    ///< How often the limit was halved.
};

enum class ServerLoad : std::uint8_t {
  kTaken,    ///< The server has answered, well or with a refusal of its own.
  kTooMuch,  ///< The server asks to slow down.
  kUnknown,  ///< No answer. Says nothing about the server's load.
};

/// Returns the state before the first request. `most` below 1 counts as 1.
ConcurrencyState Unloaded(int most);

[[nodiscard]] bool MayBegin(const ConcurrencyState& state);

/// Takes the beginning of a request. Returns its round, for End. Requires: MayBegin.
std::uint64_t Begin(ConcurrencyState* state);

/// Takes the end of a request that began in `round`. Returns true where the limit was halved.
bool End(ConcurrencyState* state, std::uint64_t round, ServerLoad load);

}  // namespace varve::s3
