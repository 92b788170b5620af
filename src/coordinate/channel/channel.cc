// The connections of a channel, for which ChannelState (the account) decides; relay.cc has the
// account of how ranks reach each other where there are many.

#include "coordinate/channel/channel.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include <unistd.h>

#include "base/file_descriptor.h"
#include "base/seconds.h"
#include "coordinate/channel/relay_state.h"
#include "coordinate/channel/search.h"

namespace varve {
namespace {

/// The reason of connections that this end closes.
constexpr const char* kClosed = "the channel is closed";
/// Bytes that wait to be sent together.
constexpr std::size_t kMostMerged = std::size_t{1} << 20;

/// Where a rank, or a leader's relay, finds another end: an end's published address.
struct Way {
  std::uint64_t end = 0;
  std::string published;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, Way>& way) {
  archive(way.end, way.published);
}

}  // namespace

Channel::Channel(ChannelOptions options)
    : options_(std::move(options)),
      fan_out_(options_.fan_out ? *options_.fan_out : FanOutFor(options_.size)),
      tree_{fan_out_.ok() ? *fan_out_ : 0},
      process_(::getpid()),
      state_(options_.rank, options_.size, options_.first_notice, options_.one_call),
      relayed_(&state_),
      links_(this) {}

Channel::~Channel() {
  // In a forked child no thread would give up the lock.
  if (process_ == ::getpid() && options_.last_messages > std::chrono::milliseconds(0)) {
    (void)Flush(Now() + options_.last_messages);
  }
}

bool Channel::IsReady() {
  const std::scoped_lock lock(mutex_);
  if (options_.rank == 0) {
    return links_.listens();
  }
  PollSockets(Now());  // Sees that rank 0 has closed the connection.
  return state_.IsConnected(0);
}

void Channel::Resume() {
  interrupted_ = false;
  links_.Sleep();
}

Status Channel::Enter(const std::string& what, double limit, Deadline until, Rendezvous& rendezvous,
                      const std::string& key) {
  lost_ = false;
  Status reached;
  if (!IsReady() && options_.rank == 0) {
    const Result<std::string> published = Publish();
    reached = published.ok() ? rendezvous.Set(key, *published) : published.status();
    if (!reached.ok()) {
      links_.StopListening();
    }
  } else if (!IsReady()) {
    reached = Reach({.size = options_.size,
                     .limit = limit,
                     .until = until,
                     .rendezvous = &rendezvous,
                     .key = key,
                     .known = known_,
                     .wake = links_.wake_fd(),
                     .what = what,
                     .log = options_.log,
                     .first_notice = options_.first_notice,
                     .why_interrupted = [this] { return interrupted_ ? Interrupted() : ""; }});
  }
  if (!reached.ok()) {
    const std::scoped_lock lock(mutex_);
    state_.Skip(what, interrupted_ ? kInterruptedReason : reached.message());
    return reached.Annotate(what);
  }
  Begin(what, limit);
  return Status::Ok();
}

void Channel::Begin(const std::string& what, double limit) {
  std::unique_lock lock(mutex_);
  if (!state_.refused().empty()) {  // Descriptors had run out.
    state_.SetRefused({});
    links_.ListenAgain();
  }
  if (options_.rank == 0) {
    PollSockets(Now());  // A rank that was in another call may have left it since.
  }
  state_.Begin(what, limit, Now());
  SendFrames();
  lock.unlock();
  LogLines();
}

void Channel::Leave(const std::string& why, int cause) {
  std::unique_lock lock(mutex_);
  state_.End(why, cause);
  Resume();  // For Flush.
  PollSockets(Now());
  lock.unlock();
  LogLines();
}

bool Channel::Flush(Deadline deadline) {
  const std::scoped_lock lock(mutex_);
  SendMerged();
  while (links_.HasUnsent()) {
    if (Now() >= deadline || interrupted_) {
      return false;
    }
    PollSockets(deadline);
  }
  // What a relay has taken is lost with this process until it has left that too.
  while (relay_ != nullptr && links_.Has(0) && !relay_->Flush(to_relay_, After(Now(), 0.05))) {
    if (Now() >= deadline || interrupted_) {
      return false;
    }
  }
  return true;
}

Status Channel::CheckPeer(int peer) const {
  const bool is_there = options_.rank == 0 ? peer > 0 && peer < options_.size : peer == 0;
  return is_there
             ? Status::Ok()
             : Internal("rank " + std::to_string(options_.rank) + " has no messages with rank " +
                        std::to_string(peer) + ": only rank 0 has, with each other one");
}

Status Channel::Send(int to, std::string_view message, Deadline deadline) {
  VARVE_RETURN_IF_ERROR(CheckPeer(to));
  const std::scoped_lock lock(mutex_);
  const bool merges = holds_ && relayed_.Has(to);
  if (!merges) {
    PollSockets(Now());
  }
  Status sent = state_.Send(to, std::string(message));
  SendFrames();
  if (sent.ok() && !merges) {
    SendMerged();
    WaitForUnsent(to, deadline);
  }
  lost_ = lost_ || !sent.ok();
  return sent;
}

void Channel::SendHeld(Deadline deadline) {
  holds_ = false;
  const std::scoped_lock lock(mutex_);
  SendMerged();
  while (links_.HasUnsent() && !interrupted_ && Now() < deadline) {
    PollSockets(deadline);
  }
}

/// Waits until the socket has taken all that was sent to a rank. Else it would wait until this rank
/// has written its file. Reads meanwhile, so that two that send cannot block each other.
void Channel::WaitForUnsent(int rank, Deadline deadline) {
  while (links_.UnsentTo(relayed_.WayTo(rank)) > 0 && !interrupted_ && Now() < deadline) {
    PollSockets(deadline);
  }
}

Result<std::string> Channel::Receive(int from, Deadline deadline) {
  VARVE_RETURN_IF_ERROR(CheckPeer(from));
  std::unique_lock lock(mutex_);
  state_.Await(from, std::chrono::duration<double>(deadline - Now()).count(), Now());
  while (true) {
    TimePoint again{};
    std::optional<Result<std::string>> received = state_.Poll(interrupted_, Now(), &again);
    SendFrames();
    SendMerged();
    if (received) {
      lost_ = lost_ || received->status().code() == StatusCode::kUnavailable;
      lock.unlock();
      LogLines();
      return std::move(*received);
    }
    lock.unlock();
    LogLines();
    lock.lock();
    PollSockets(again);
  }
}

void Channel::Interrupt() {
  interrupted_ = true;
  links_.Wake();
}

std::string Channel::Interrupted() const {
  return "was not waited for: rank " + std::to_string(options_.rank) + " " + kInterruptedReason;
}

void Channel::Report(std::string note) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock && links_.Has(0) && links_.UnsentTo(0) == 0) {
    state_.SendNote(std::move(note));
    SendFrames();
  }
}

void Channel::TellPast(const std::string& name) {
  const std::scoped_lock lock(mutex_);
  PollSockets(Now());
  state_.TellPast(name);
  SendFrames();
  SendMerged();
}

std::string Channel::what() {
  const std::scoped_lock lock(mutex_);
  return state_.what();
}

int Channel::cause() {
  const std::scoped_lock lock(mutex_);
  return state_.cause();
}

void Channel::LogLines() {
  std::unique_lock lock(mutex_);
  const std::vector<std::string> lines = state_.TakeLines();
  lock.unlock();
  for (const std::string& line : lines) {
    if (options_.log) {
      options_.log(line);
    }
  }
}

Status Channel::CheckSockets() const {
  VARVE_RETURN_IF_ERROR(fan_out_.status());
  return links_.is_valid() ? Status::Ok() : SystemError("make a channel", EMFILE);
}

/// Opens rank 0's listening socket; returns its address as text.
Result<std::string> Channel::Publish() {
  VARVE_RETURN_IF_ERROR(CheckSockets());
  auto made = Listen(options_.size);
  VARVE_RETURN_IF_ERROR(made.status().Annotate("rank 0"));
  const std::scoped_lock lock(mutex_);
  address_ = std::move(made->second);
  links_.Listen(std::move(made->first), address_.token, options_.size - 1);
  return EncodeFields(address_);
}

/// Connects this rank: to rank 0, or to the relay of its leader; and the relay that it has.
Status Channel::Reach(const Search& search) {
  VARVE_RETURN_IF_ERROR(CheckSockets());
  std::unique_ptr<Relay> relay;
  int end = tree_.LeaderOf(options_.rank);
  if (tree_.Leads(options_.rank)) {
    Result<std::unique_ptr<Relay>> made = Relay::Make(options_.rank, options_.size);
    end = 0;
    if (made.ok()) {  // Without one the others connect to rank 0, as this one does.
      relay = std::move(*made);
      end = tree_.AboveOf(options_.rank);
      VARVE_RETURN_IF_ERROR(
          search.rendezvous->Set(KeyOfEnd(search.key, options_.rank), relay->published()));
    }
  }
  VARVE_ASSIGN_OR_RETURN(FoundEnd found, FindEnd(end, search, Hello(relay != nullptr)));
  if (relay != nullptr && !StartRelay(&found, relay.get()).ok()) {
    relay.reset();
    VARVE_ASSIGN_OR_RETURN(found, FindEnd(0, search, Hello(false)));
  }
  Join(std::move(found), std::move(relay));
  return Status::Ok();
}

CallReport Channel::Hello(bool of_relay) const {
  return {.rank = static_cast<std::uint64_t>(options_.rank), .relay = of_relay};
}

/// Gives a connection to this rank's relay; in its place comes one to the relay.
Status Channel::StartRelay(FoundEnd* found, Relay* relay) const {
  VARVE_ASSIGN_OR_RETURN(Socket own,
                         relay->Start(std::move(found->connection), found->end, found->rank_0));
  *found = {options_.rank, Connection(std::move(own), true), std::move(found->rank_0)};
  return Status::Ok();
}

void Channel::Join(FoundEnd found, std::unique_ptr<Relay> relay) {
  const std::scoped_lock lock(mutex_);
  relay_ = std::move(relay);
  leader_ = found.end;
  known_ = std::move(found.rank_0);
  to_relay_ = 0;
  links_.Add(0, std::move(found.connection));
}

/// On rank 0: waits until all ranks, which have connected, are known.
Status Channel::AcceptAll(Deadline until) {
  const std::scoped_lock lock(mutex_);
  while (state_.connected() + 1 < options_.size && state_.refused().empty() && Now() < until) {
    PollSockets(until);
  }
  std::string missing;
  for (int rank = 1; rank < options_.size; ++rank) {
    if (!state_.IsConnected(rank)) {
      missing += (missing.empty() ? "rank " : "; rank ") + std::to_string(rank) + ": " +
                 state_.WhyNotConnected(rank);
    }
  }
  return missing.empty() ? Status::Ok() : Unavailable(std::move(missing));
}

/// Returns the address that other ranks connect to in the background; empty where none does.
Result<std::string> Channel::PublishForBackground() {
  if (options_.rank == 0) {
    return Publish();
  }
  if (tree_.Leads(options_.rank)) {
    if (Result<std::unique_ptr<Relay>> made = Relay::Make(options_.rank, options_.size);
        made.ok()) {
      relay_ = std::move(*made);
      return relay_->published();
    }
  }
  return std::string();
}

/// Connects by the way that rank 0 has sent.
Status Channel::JoinInBackground(const std::string& way, Deadline until, int wake) {
  if (options_.rank == 0) {
    return Status::Ok();
  }
  VARVE_RETURN_IF_ERROR(CheckSockets());
  VARVE_ASSIGN_OR_RETURN(const Way found, DecodeFields<Way>(way));
  const auto end = static_cast<int>(found.end);
  VARVE_ASSIGN_OR_RETURN(Connection connection,
                         ConnectTo(end, found.published, Hello(relay_ != nullptr), until, wake));
  FoundEnd joined{end, std::move(connection)};
  if (relay_ != nullptr) {
    VARVE_RETURN_IF_ERROR(StartRelay(&joined, relay_.get()));
  }
  Join(std::move(joined), std::move(relay_));
  return Status::Ok();
}

Result<std::shared_ptr<Channel>> Channel::MakeBackground(double limit, const std::string& name) {
  ChannelOptions options = options_;
  options.one_call = true;
  const auto channel = std::make_shared<Channel>(std::move(options));
  const auto ranks = MakeInStep({std::shared_ptr<void>(), this});
  const std::string call = what();
  const Deadline until = After(Now(), limit);
  const auto size = static_cast<std::size_t>(options_.size);
  VARVE_ASSIGN_OR_RETURN(
      const std::string way,
      Exchange(*ranks, call, channel->PublishForBackground(), until,
               [&](const std::vector<std::string>& given) -> Result<std::vector<std::string>> {
                 std::vector<std::string> ways(size);
                 for (int rank = 1; rank < options_.size; ++rank) {
                   const int above = tree_.Leads(rank) ? tree_.AboveOf(rank) : tree_.LeaderOf(rank);
                   const int end = given[static_cast<std::size_t>(above)].empty() ? 0 : above;
                   ways[static_cast<std::size_t>(rank)] = EncodeFields(
                       Way{static_cast<std::uint64_t>(end), given[static_cast<std::size_t>(end)]});
                 }
                 return ways;
               }));
  const Status connected = channel->JoinInBackground(way, until, links_.wake_fd());
  const Result<std::string> accepted =
      Exchange(*ranks, call, connected.ok() ? Contribution(std::string()) : Contribution(connected),
               until, [&](const std::vector<std::string>&) -> Result<std::vector<std::string>> {
                 VARVE_RETURN_IF_ERROR(channel->AcceptAll(until));
                 return std::vector<std::string>(size);
               });
  VARVE_RETURN_IF_ERROR(accepted.status());
  channel->Begin(name, limit);
  return channel;
}

void Channel::Close() {
  const std::scoped_lock lock(mutex_);
  links_.CloseAll(kClosed);
  links_.StopListening();
  relay_.reset();
}

void Channel::PollSockets(Deadline until) {
  SendFrames();
  SendMerged();
  links_.Poll(until);
  SendFrames();
}

void Channel::SendFrames() {
  for (auto frames = state_.TakeFrames(); !frames.empty(); frames = state_.TakeFrames()) {
    for (auto& [rank, frame] : frames) {
      if (options_.rank != 0 || !relayed_.Has(rank)) {
        to_relay_ += links_.Has(rank) ? 1 : 0;
        links_.Put(rank, std::move(frame));
      } else if (relayed_.Add(rank, std::move(frame)); relayed_.bytes() > kMostMerged) {
        SendMerged();
      }
    }
  }
}

/// On rank 0: gives the relays what SendFrames has left for them.
void Channel::SendMerged() {
  for (auto& [key, frame] : relayed_.TakeFrames()) {
    links_.Put(key, std::move(frame));
  }
}

std::optional<int> Channel::KeyOf(const CallReport& hello) {
  const int key = KeyOfHello(hello, options_.size);
  return key < 0 ? std::nullopt : std::optional(key);
}

void Channel::Connected(int key) {
  if (key < options_.size) {
    relayed_.Forget(key);
    state_.Connected(key);
  }
}

void Channel::Arrived(int key, Frame frame) {
  if (key >= options_.size) {
    relayed_.Arrived(key, frame, Now());
  } else if (!relayed_.Has(key)) {
    state_.Arrived(key, std::move(frame), Now());
  }
}

void Channel::Lost(int key, const std::string& why) {
  if (key >= options_.size) {
    relayed_.Lost(key, why);
  } else if (!relayed_.Has(key)) {
    const bool by_relay = options_.rank != 0 && leader_ != 0 && leader_ != options_.rank;
    if (by_relay && why != kClosed) {
      state_.Lost(key, LostWith(leader_), leader_);
    } else {
      state_.Lost(key, why);
    }
    relayed_.DirectIsLost(key);
  }
}

}  // namespace varve
