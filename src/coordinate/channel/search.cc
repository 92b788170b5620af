#include "coordinate/channel/search.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <poll.h>

#include "base/seconds.h"
#include "base/time_source.h"

namespace varve {
namespace {

/// Time between the first two looks for an address, and between later ones of 1,024 ranks: the more
/// ranks ask, the more seldom each does.
constexpr double kFirstLook = 0.002;
constexpr double kLook = 0.2;
/// Time in which a rank looks for the relay of its leader, before it connects to rank 0.
constexpr double kRelayGrace = 10;

std::string NameOf(int end) { return "rank " + std::to_string(end); }

}  // namespace

std::string KeyOfEnd(const std::string& key, int leader) {
  return leader == 0 ? key : key + "/" + std::to_string(leader);
}

/// Asks the rendezvous again and again, rather than waiting in it: a wait in torch's store blocks
/// the job's own connection to it for other threads, and blocks Ctrl-C; a connection of one's own
/// takes TCPStore up to 5 s to accept (torch 2.13).
Result<FoundEnd> FindEnd(int end, const Search& search, const CallReport& hello) {
  double pause = kFirstLook;
  const double longest = kLook * std::max(search.size / 1024.0, 1.0);
  const Deadline rank_0_from = After(Now(), std::min(kRelayGrace, search.limit / 2));
  while (true) {
    end = Now() < rank_0_from ? end : 0;
    Status problem = Unavailable(NameOf(end) + ": did not come before the deadline of " +
                                 InSeconds(search.limit));
    VARVE_ASSIGN_OR_RETURN(const std::optional<std::string> published,
                           search.rendezvous->Get(KeyOfEnd(search.key, end)));
    if (published) {
      Result<Connection> connected = ConnectTo(end, *published, hello, search.until, search.wake);
      if (connected.ok()) {
        return FoundEnd{end, *std::move(connected)};
      }
      problem = connected.status();
      if (problem.code() != StatusCode::kUnavailable) {
        return problem;
      }
    }
    if (const std::string why = search.why_interrupted(); !why.empty()) {
      return Unavailable(why).With({.rank = static_cast<int>(hello.rank)});
    }
    if (Now() >= search.until) {
      return Unavailable(problem.message()).With({.rank = end});
    }
    (void)AwaitSocket(search.wake, POLLIN, std::min(search.until, After(Now(), pause)), -1);
    pause = std::min(pause * 1.5, longest);
  }
}

Result<Connection> ConnectTo(int end, std::string_view published, CallReport hello, Deadline until,
                             int wake) {
  const Result<Address> decoded = DecodeFields<Address>(published);
  if (!decoded.ok() || decoded->version != VARVE_VERSION_STRING) {
    return FailedPrecondition(
               NameOf(end) + " runs " +
               (decoded.ok() ? "Varve " + decoded->version : "another version of Varve") +
               ", this rank Varve " + VARVE_VERSION_STRING + "; all ranks need the same version")
        .With({.rank = end});
  }
  const Address& address = *decoded;
  Result<Socket> socket = Connect(address, until, wake);
  if (!socket.ok()) {
    return Unavailable(NameOf(end) + ": cannot be reached at " + ToString(address) + ": " +
                       socket.status().message() +
                       " (GLOO_SOCKET_IFNAME names the network interface that " + NameOf(end) +
                       " is reached by)");
  }
  Connection connection(std::move(*socket), true);
  hello.text = address.token;
  connection.Put({FrameKind::kHello, 0, EncodeFields(hello)});
  return connection;
}

}  // namespace varve
