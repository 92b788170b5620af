#include "coordinate/channel/search.h"

#include <algorithm>
#include <cerrno>
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
/// Seconds for which a rank goes on looking for the relay of its leader once rank 0 can be reached,
/// and once the relay has refused it.
constexpr double kRelayGrace = 10;
constexpr double kRefusedGrace = 1;
/// Seconds for which rank 0 is looked for where nothing listens at the address that was known.
constexpr double kEndedGrace = 3;

std::string NameOf(int end) { return "rank " + std::to_string(end); }

}  // namespace

std::string KeyOfEnd(const std::string& key, int leader) {
  return leader == 0 ? key : key + "/" + std::to_string(leader);
}

namespace {

/// A search under way.
class Finder {
 public:
  Finder(int end, const Search& search, const CallReport& hello)
      : end_(end), search_(search), hello_(hello) {}

  /// Looks once; returns the connection, or nothing where none is there yet.
  Result<std::optional<FoundEnd>> Look();
  /// Waits for the answer of a relay, or until the next look.
  void Wait(Deadline until) const {
    const int fd = asked_ ? asked_->fd() : search_.wake;
    (void)AwaitSocket(fd, POLLIN, until, asked_ ? search_.wake : -1);
  }
  /// Returns what this rank has waited for, for the log.
  [[nodiscard]] std::string WaitsFor() const {
    return problem_.empty() ? NameOf(end_) + " (not there yet)"
                            : std::string("a connection: ").append(problem_);
  }
  /// Why the last look found nothing.
  [[nodiscard]] Status Problem() const {
    return Unavailable(problem_.empty() ? NameOf(end_) + ": did not come before the deadline of " +
                                              InSeconds(search_.limit)
                                        : problem_)
        .With({.rank = end_});
  }

 private:
  Status Connect();
  Status CheckRank0(const Status& refused);
  void LookForRelay(double seconds);
  void TurnTo0();
  [[nodiscard]] Result<std::optional<std::string>> Published(int end) const {
    return search_.rendezvous->Get(KeyOfEnd(search_.key, end));
  }

  int end_;
  const Search& search_;
  const CallReport& hello_;
  std::string published_;            // Of the end, when it was asked last.
  std::optional<Connection> asked_;  // Without the answer of a relay.
  Deadline ended_from_ = Deadline::max();
  Deadline rank_0_from_ = Deadline::max();
  bool saw_0_ = false;
  std::string problem_;
};

Status Finder::Connect() {
  problem_.clear();
  VARVE_ASSIGN_OR_RETURN(const std::optional<std::string> published, Published(end_));
  if (!published) {
    return Status::Ok();
  }
  published_ = *published;
  Result<Connection> connected = ConnectTo(end_, published_, hello_, search_.until, search_.wake);
  if (connected.ok()) {
    asked_ = std::move(*connected);
    (void)asked_->Write();  // Where it fails, so does what is read.
    return Status::Ok();
  }
  if (connected.status().code() != StatusCode::kUnavailable) {
    return connected.status();
  }
  problem_ = connected.status().message();
  LookForRelay(kRefusedGrace);
  return CheckRank0(connected.status());
}

/// Fails where rank 0 has ended. Its channel listens for as long as it lives, in calls and between
/// them. Where this channel was connected to it and the machine says for some seconds that nothing
/// listens there, it would be waited for in vain. An address that this channel does not know may
/// be an older world's.
Status Finder::CheckRank0(const Status& refused) {
  if (end_ != 0 || published_ != search_.known || refused.details().system_error != ECONNREFUSED) {
    ended_from_ = Deadline::max();
    return Status::Ok();
  }
  ended_from_ = std::min(ended_from_, After(Now(), kEndedGrace));
  if (Now() < ended_from_) {
    return Status::Ok();
  }
  return Unavailable("rank 0: is lost: nothing listens any more at " +
                     ToString(DecodeFields<Address>(published_).value()) +
                     ", where this rank was connected to it; its process has ended, or has left "
                     "the process group")
      .With({.rank = 0});
}

/// Goes on looking for a relay for so long, or half of the time that is left.
void Finder::LookForRelay(double seconds) {
  const std::chrono::duration<double> left = search_.until - Now();
  rank_0_from_ = std::min(rank_0_from_, After(Now(), std::min(seconds, left.count() / 2)));
}

/// Gives up a relay that does not come.
void Finder::TurnTo0() {
  if (end_ != 0 && Now() >= rank_0_from_) {
    end_ = 0;
    asked_.reset();
  }
}

Result<std::optional<FoundEnd>> Finder::Look() {
  TurnTo0();
  if (!asked_) {
    VARVE_RETURN_IF_ERROR(Connect());
  }
  if (asked_) {
    Result<std::optional<Frame>> answer =
        end_ == 0 ? Result<std::optional<Frame>>(Frame{.payload = published_}) : asked_->Read();
    if (answer.ok() && *answer) {  // Rank 0 gives none.
      return std::optional<FoundEnd>({end_, std::move(*asked_), std::move((*answer)->payload)});
    }
    if (!answer.ok()) {
      asked_.reset();
      LookForRelay(kRefusedGrace);
    }
  }
  if (end_ != 0 && !saw_0_) {
    VARVE_ASSIGN_OR_RETURN(const std::optional<std::string> of_0, Published(0));
    saw_0_ = of_0.has_value();
    if (saw_0_) {
      LookForRelay(kRelayGrace);
    }
  }
  return std::optional<FoundEnd>();
}

}  // namespace

/// Asks the rendezvous again and again, rather than waiting in it: a wait in torch's store blocks
/// the job's own connection to it for other threads, and blocks Ctrl-C; a connection of one's own
/// takes TCPStore up to 5 s to accept (torch 2.13).
Result<FoundEnd> FindEnd(int end, const Search& search, const CallReport& hello) {
  Finder finder(end, search, hello);
  const TimePoint begun = Now();
  auto notice = search.first_notice;
  double pause = kFirstLook;
  const double longest = kLook * std::max(search.size / 1024.0, 1.0);
  while (true) {
    VARVE_ASSIGN_OR_RETURN(std::optional<FoundEnd> found, finder.Look());
    if (found) {
      return std::move(*found);
    }
    if (const std::string why = search.why_interrupted(); !why.empty()) {
      return Unavailable(why).With({.rank = static_cast<int>(hello.rank)});
    }
    if (Now() >= search.until) {
      return finder.Problem();
    }
    if (search.log && Now() - begun >= notice) {
      notice *= 2;
      search.log(WaitLine(search.what, hello.rank, begun, Now(), finder.WaitsFor(), search.limit));
    }
    finder.Wait(std::min(search.until, After(Now(), pause)));
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
    return Unavailable(
               NameOf(end) + ": cannot be reached at " + ToString(address) + ": " +
               socket.status().message() +
               " (its process may have ended; GLOO_SOCKET_IFNAME names the network interface that " +
               NameOf(end) + " is reached by)")
        .With({.rank = end, .system_error = socket.status().details().system_error});
  }
  Connection connection(std::move(*socket), true);
  hello.text = address.token;
  connection.Put({FrameKind::kHello, 0, EncodeFields(hello)});
  return connection;
}

}  // namespace varve
