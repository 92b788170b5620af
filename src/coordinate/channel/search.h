/// How an end of a channel finds another one: rank 0, or the relay of a leader.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "coordinate/channel/connection.h"
#include "coordinate/channel/frames.h"
#include "varve/coordinator.h"

namespace varve {

struct Search {
  int size = 1;
  double limit = 0;  ///< Seconds, for the message.
  Deadline until{};
  Rendezvous* rendezvous = nullptr;
  std::string key{};  ///< Under which rank 0 publishes its address.
  /// What rank 0 had published when this channel last reached it, also by relays; empty: it never has.
  std::string known{};
  int wake = -1;       ///< A descriptor that is readable when the search is to end.
  std::string what{};  ///< The call, for the log.
  /// Called with a line for the log after this time, and then after twice the time. May be empty.
  std::function<void(const std::string&)> log{};
  std::chrono::milliseconds first_notice{};
  /// Returns why the search is to end; empty where it is not.
  std::function<std::string()> why_interrupted{};
};

/// A connection to rank 0, or to the relay of a leader.
struct FoundEnd {
  int end = 0;
  Connection connection;
  std::string rank_0{};  ///< The address that rank 0 has published.
};

/// Returns the key under which the relay of a leader publishes its address.
std::string KeyOfEnd(const std::string& key, int leader);

/// Connects to an end, as soon as its address is known. A relay says when it has reached rank 0;
/// where it has not some seconds after rank 0 came, or cannot be reached, the connection is to
/// rank 0. `hello` says which rank connects; its token is filled in. Errors: Unavailable at the
/// deadline, or where nothing listens any more at the address of rank 0 that was known.
Result<FoundEnd> FindEnd(int end, const Search& search, const CallReport& hello);

/// Connects to an end at the address that it has published. Errors: FailedPrecondition where it
/// runs another version.
Result<Connection> ConnectTo(int end, std::string_view published, CallReport hello, Deadline until,
                             int wake);

}  // namespace varve
