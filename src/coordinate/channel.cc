// The sockets of a channel, for which ChannelState (the account) decides. A connection belongs to a
// rank once its first frame has brought the channel's token; all others are closed.

#include "coordinate/channel.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file_descriptor.h"
#include "base/seconds.h"

namespace varve {
namespace {

/// Time between the first two looks for rank 0's address, and between later ones of 1,024 ranks:
/// the more ranks ask, the more seldom each does.
constexpr double kFirstLook = 0.002;
constexpr double kLook = 0.2;

/// What epoll returns for descriptors that are no rank's: ranks are smaller, arriving connections
/// greater.
constexpr std::uint64_t kWakeTag = std::uint64_t{1} << 32U;
constexpr std::uint64_t kListenerTag = kWakeTag + 1;

int Milliseconds(Deadline until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

}  // namespace

Channel::Channel(ChannelOptions options)
    : options_(std::move(options)),
      process_(::getpid()),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      poll_(::epoll_create1(EPOLL_CLOEXEC)),
      state_(options_.rank, options_.size, options_.first_notice, options_.one_call),
      newest_arriving_(kListenerTag) {
  Watch(EPOLL_CTL_ADD, wake_.get(), kWakeTag);
}

Channel::~Channel() {
  // In a forked child no thread would give up the lock.
  if (process_ == ::getpid() && options_.last_messages > std::chrono::milliseconds(0)) {
    (void)Flush(Now() + options_.last_messages);
  }
}

bool Channel::IsReady() {
  const std::scoped_lock lock(mutex_);
  if (options_.rank == 0) {
    return listener_.valid();
  }
  PollSockets(Now());  // Sees that rank 0 has closed the connection.
  return state_.IsConnected(0);
}

void Channel::Resume() {
  interrupted_ = false;
  eventfd_t count = 0;
  (void)::eventfd_read(wake_.get(), &count);
}

Status Channel::Enter(const std::string& what, double limit, Deadline until, Rendezvous& rendezvous,
                      const std::string& key) {
  lost_ = false;
  Status reached;
  if (!IsReady() && options_.rank == 0) {
    const Result<std::string> published = Publish();
    reached = published.ok() ? rendezvous.Set(key, *published) : published.status();
    if (!reached.ok()) {
      listener_.Close();
    }
  } else if (!IsReady()) {
    reached = Reach(limit, until, rendezvous, key);
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
    Watch(EPOLL_CTL_ADD, listener_.get(), kListenerTag);  // Of other ranks it is none.
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
  const auto has_unsent = [](const auto& link) { return link.second.has_unsent(); };
  const std::scoped_lock lock(mutex_);
  while (std::any_of(links_.begin(), links_.end(), has_unsent)) {
    if (Now() >= deadline || interrupted_) {
      return false;
    }
    PollSockets(deadline);
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
  PollSockets(Now());
  Status sent = state_.Send(to, std::string(message));
  SendFrames();
  // What is left would wait until this rank has written its file. It reads meanwhile, so that two
  // that send cannot block each other.
  for (auto link = links_.find(to); sent.ok() && link != links_.end() && !interrupted_ &&
                                    link->second.has_unsent() && Now() < deadline;
       link = links_.find(to)) {
    PollSockets(deadline);
  }
  lost_ = lost_ || !sent.ok();
  return sent;
}

Result<std::string> Channel::Receive(int from, Deadline deadline) {
  VARVE_RETURN_IF_ERROR(CheckPeer(from));
  std::unique_lock lock(mutex_);
  state_.Await(from, std::chrono::duration<double>(deadline - Now()).count(), Now());
  while (true) {
    TimePoint again{};
    std::optional<Result<std::string>> received = state_.Poll(interrupted_, Now(), &again);
    SendFrames();
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
  (void)::eventfd_write(wake_.get(), 1);
}

std::string Channel::Interrupted() const {
  return "was not waited for: rank " + std::to_string(options_.rank) + " " + kInterruptedReason;
}

void Channel::Report(std::string note) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  const auto link = lock ? links_.find(0) : links_.end();
  if (lock && link != links_.end() && !link->second.has_unsent()) {
    state_.SendNote(std::move(note));
    SendFrames();
  }
}

void Channel::TellPast(const std::string& name) {
  const std::scoped_lock lock(mutex_);
  PollSockets(Now());
  state_.TellPast(name);
  SendFrames();
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
  return poll_.valid() && wake_.valid() ? Status::Ok() : NoDescriptor("make a channel", EMFILE);
}

/// Opens rank 0's listening socket; returns its address as text.
Result<std::string> Channel::Publish() {
  VARVE_RETURN_IF_ERROR(CheckSockets());
  auto made = Listen(options_.size);
  VARVE_RETURN_IF_ERROR(made.status().Annotate("rank 0"));
  const std::scoped_lock lock(mutex_);
  listener_ = std::move(made->first);
  address_ = std::move(made->second);
  Watch(EPOLL_CTL_ADD, listener_.get(), kListenerTag);
  return EncodeFields(address_);
}

/// Connects to rank 0. Asks the rendezvous again and again, rather than waiting in it: a wait in
/// torch's store blocks the job's own connection to it for other threads, and blocks Ctrl-C; a
/// connection of one's own takes TCPStore up to 5 s to accept (torch 2.13).
Status Channel::Reach(double limit, Deadline until, Rendezvous& rendezvous,
                      const std::string& key) {
  double pause = kFirstLook;
  const double longest = kLook * std::max(options_.size / 1024.0, 1.0);
  while (true) {
    Status problem = Unavailable("rank 0: did not come before the deadline of " + InSeconds(limit));
    VARVE_ASSIGN_OR_RETURN(const std::optional<std::string> published, rendezvous.Get(key));
    if (published) {
      problem = ConnectTo(*published, until, wake_.get());
      if (problem.ok() || problem.code() != StatusCode::kUnavailable) {
        return problem;
      }
    }
    if (interrupted_) {
      return Unavailable(Interrupted()).With({.rank = options_.rank});
    }
    if (Now() >= until) {
      return Unavailable(problem.message()).With({.rank = 0});
    }
    pollfd wake{wake_.get(), POLLIN, 0};
    (void)::poll(&wake, 1, Milliseconds(std::min(until, After(Now(), pause))));
    pause = std::min(pause * 1.5, longest);
  }
}

/// Connects to rank 0 at the address that it has published.
Status Channel::ConnectTo(std::string_view published, Deadline until, int wake) {
  VARVE_RETURN_IF_ERROR(CheckSockets());
  const Result<Address> decoded = DecodeFields<Address>(published);
  if (!decoded.ok() || decoded->version != VARVE_VERSION_STRING) {
    return FailedPrecondition(
               "rank 0 runs " +
               (decoded.ok() ? "Varve " + decoded->version : "another version of Varve") +
               ", this rank Varve " + VARVE_VERSION_STRING + "; all ranks need the same version")
        .With({.rank = 0});
  }
  const Address& address = *decoded;
  Result<Socket> socket = Connect(address, until, wake);
  if (!socket.ok()) {
    return Unavailable(
        "rank 0: cannot be reached at " + ToString(address) + ": " + socket.status().message() +
        " (GLOO_SOCKET_IFNAME names the network interface that rank 0 is reached by)");
  }
  Connection connection(std::move(*socket), true);
  connection.Put({FrameKind::kHello, 0,
                  EncodeFields(CallReport{.text = address.token,
                                          .rank = static_cast<std::uint64_t>(options_.rank)})});
  const std::scoped_lock lock(mutex_);
  Adopt(0, std::move(connection), EPOLL_CTL_ADD);
  Write(0);
  return Status::Ok();
}

/// On rank 0: accepts the connections of all ranks, which have made them.
Status Channel::AcceptAll(Deadline until) {
  const std::scoped_lock lock(mutex_);
  while (static_cast<int>(links_.size()) + 1 < options_.size && state_.refused().empty() &&
         Now() < until) {
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

Result<std::shared_ptr<Channel>> Channel::MakeBackground(double limit) {
  ChannelOptions options = options_;
  options.one_call = true;
  const auto channel = std::make_shared<Channel>(std::move(options));
  const auto ranks = MakeInStep({std::shared_ptr<void>(), this});
  const std::string call = what();
  const Deadline until = After(Now(), limit);
  const auto size = static_cast<std::size_t>(options_.size);
  VARVE_ASSIGN_OR_RETURN(
      const std::string published,
      Exchange(*ranks, call, options_.rank == 0 ? channel->Publish() : std::string(), until,
               [&](const std::vector<std::string>& given) -> Result<std::vector<std::string>> {
                 return std::vector<std::string>(size, given.front());
               }));
  Status connected;
  if (options_.rank != 0) {
    connected = channel->ConnectTo(published, until, wake_.get());
  }
  const Result<std::string> accepted =
      Exchange(*ranks, call, connected.ok() ? Contribution(std::string()) : Contribution(connected),
               until, [&](const std::vector<std::string>&) -> Result<std::vector<std::string>> {
                 VARVE_RETURN_IF_ERROR(channel->AcceptAll(until));
                 return std::vector<std::string>(size);
               });
  VARVE_RETURN_IF_ERROR(accepted.status());
  channel->Begin("save in the background", limit);
  return channel;
}

void Channel::Close() {
  const std::scoped_lock lock(mutex_);
  CloseLinks();
  arriving_.clear();
  listener_.Close();
}

void Channel::CloseLinks() {
  while (!links_.empty()) {
    Drop(links_.begin()->first, "the channel is closed");
  }
}

void Channel::Watch(int how, int fd, std::uint64_t tag, bool writes) {
  epoll_event event{};
  event.events = EPOLLIN | (writes ? std::uint32_t{EPOLLOUT} : 0U);
  event.data.u64 = tag;
  if (::epoll_ctl(poll_.get(), how, fd, &event) != 0 && how == EPOLL_CTL_ADD && errno != EEXIST &&
      errno != EBADF) {
    state_.SetRefused(std::string("this process cannot wait for its sockets: ") +
                      std::strerror(errno));
  }
}

/// Waits until a socket is ready, at most until then; reads, writes and accepts.
void Channel::PollSockets(Deadline until) {
  SendFrames();
  std::array<epoll_event, 64> events{};
  const int count = ::epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()),
                                 Milliseconds(until));
  if (count < 0 && errno != EINTR) {
    CloseLinks();
    state_.SetRefused("this process has not the channel's sockets, as a forked child");
  }
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    const std::uint64_t tag = event.data.u64;
    if (tag == kWakeTag) {
      eventfd_t wakes = 0;
      (void)::eventfd_read(wake_.get(), &wakes);
    } else if (tag == kListenerTag) {
      Accept();
    } else if (tag > kListenerTag) {
      Meet(tag);
    } else {
      const auto rank = static_cast<int>(tag);
      if ((event.events & EPOLLOUT) != 0) {
        Write(rank);
      }
      if ((event.events & ~std::uint32_t{EPOLLOUT}) != 0) {
        Read(rank);
      }
    }
  }
  SendFrames();
}

void Channel::SendFrames() {
  for (auto frames = state_.TakeFrames(); !frames.empty(); frames = state_.TakeFrames()) {
    for (auto& [rank, frame] : frames) {
      if (const auto link = links_.find(rank); link != links_.end()) {
        link->second.Put(std::move(frame));
        Write(rank);
      }
    }
  }
}

void Channel::Write(int rank) {
  const auto link = links_.find(rank);
  if (link == links_.end()) {
    return;
  }
  if (!link->second.Write().ok()) {
    Read(rank);  // It may have sent why it left.
    Drop(rank, kLostReason);
    return;
  }
  const bool blocked = link->second.has_unsent();
  if (blocked != blocked_.contains(rank)) {
    Watch(EPOLL_CTL_MOD, link->second.fd(), static_cast<std::uint64_t>(rank), blocked);
    blocked ? (void)blocked_.insert(rank) : (void)blocked_.erase(rank);
  }
}

void Channel::Read(int rank) {
  for (auto link = links_.find(rank); link != links_.end(); link = links_.find(rank)) {
    Result<std::optional<Frame>> frame = link->second.Read();
    if (!frame.ok()) {
      Drop(rank, kLostReason);
    } else if (*frame) {
      state_.Arrived(rank, std::move(**frame), Now());
    } else {
      return;
    }
  }
}

void Channel::Accept() {
  Socket socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.valid()) {
    const std::uint64_t tag = ++newest_arriving_;
    Watch(EPOLL_CTL_ADD, socket.get(), tag);
    arriving_.emplace(tag, Connection(std::move(socket), false));
    return;
  }
  const int error = errno;
  if (error == EAGAIN || error == EINTR || error == ECONNABORTED) {
    return;
  }
  // No descriptor is left, as a rule. The listener would stay ready.
  Watch(EPOLL_CTL_DEL, listener_.get(), kListenerTag);
  std::string why = std::string("rank 0 could not accept its connection: ") + std::strerror(error);
  if (error == ENFILE || error == EMFILE) {
    why += "; rank 0 needs a descriptor for each of " + std::to_string(options_.size - 1) +
           " ranks (raise ulimit -n)";
  }
  state_.SetRefused(std::move(why));
}

/// Reads the first frame of a new connection.
void Channel::Meet(std::uint64_t arriving) {
  const auto found = arriving_.find(arriving);
  if (found == arriving_.end()) {
    return;
  }
  const Result<std::optional<Frame>> frame = found->second.Read();
  if (frame.ok() && !*frame) {
    return;
  }
  Connection connection = std::move(found->second);
  arriving_.erase(found);
  if (frame.ok()) {
    const auto hello = DecodeFields<CallReport>((*frame)->payload);
    if (hello.ok() && hello->text == address_.token && hello->rank > 0 &&
        hello->rank < static_cast<std::uint64_t>(options_.size)) {
      connection.Trust();
      Adopt(static_cast<int>(hello->rank), std::move(connection), EPOLL_CTL_MOD);
      return;
    }
  }
  // A forked child may still have the socket, which would keep it here.
  Watch(EPOLL_CTL_DEL, connection.fd(), 0);
}

void Channel::Adopt(int rank, Connection connection, int how) {
  Drop(rank, kLostReason);
  Watch(how, connection.fd(), static_cast<std::uint64_t>(rank));
  links_.emplace(rank, std::move(connection));
  state_.Connected(rank);
}

void Channel::Drop(int rank, const std::string& why) {
  if (const auto link = links_.find(rank); link != links_.end()) {
    Watch(EPOLL_CTL_DEL, link->second.fd(), 0);
    links_.erase(link);
    blocked_.erase(rank);
    state_.Lost(rank, why);
  }
}

}  // namespace varve
