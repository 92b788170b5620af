// The agent's life:
//  1. Lock the endpoint: of two that are started at once, one ends here. The lock ends with its
//     holder, so a killed agent blocks no other.
//  2. Listen. The socket of a dead agent is replaced; trainers that were connected to it have lost
//     their connection.
//  3. One thread accepts connections and handles messages, and never blocks for long. Each
//     trainer's saves are written by threads of their own (session_machine.h).
//  4. A trainer has ended when it sends kBye or its process exits: children that it forked may hold
//     the connection open. A trainer whose connection ends and whose process lives keeps its
//     memory. That memory is in use, and may be registered with devices, which would go on writing
//     to pages that the agent had released.
//  5. The agent ends when no process was connected and no save was left to write for the idle time,
//     or when kStop has come and all saves are written. The agent removes the socket's name before
//     it releases the lock, so that it cannot remove the socket of the next agent. It closes its
//     connections in between: who has sent kStop waits for that, so that no save of theirs finds
//     an agent that is about to end.

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/connection.h"
#include "agent/endpoint.h"
#include "agent/requests.h"
#include "base/events.h"
#include "base/guarded.h"
#include "base/trace.h"
#include "varve/agent.h"
#include "varve/metadata.h"

namespace varve {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMostConnections = 1024;
constexpr int kFullPause = 100;  // Milliseconds.
// A peer waits for 10 s for an answer to its greeting; others may have ended by then.
constexpr auto kFullForLong = std::chrono::seconds(2);
constexpr int kSilentPause = 100;
constexpr std::size_t kFirstPeer = 2;  // Index in the vector that Wait returns.

struct SocketPeer : Peer {
  std::shared_ptr<AgentConnection> socket;  // `connection`.
  FileDescriptor process;                   // A pidfd; none where the process cannot be seen.
};

FileDescriptor Spare() { return FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

class AgentServer {
 public:
  AgentServer(const AgentServerOptions& options, FileDescriptor listening, FileDescriptor wake,
              FileDescriptor spare)
      : options_(options),
        listening_(std::move(listening)),
        wake_(std::move(wake)),
        spare_(std::move(spare)),
        requests_(options, AnyStorage(), [fd = wake_.get()] {
          const std::uint64_t one = 1;
          (void)!::write(fd, &one, sizeof(one));
        }) {}

  void Run() {
    while (!Finished()) {
      const std::vector<pollfd> ready = Wait();
      if ((ready[0].revents & POLLIN) != 0) {
        std::uint64_t count = 0;
        (void)!::read(wake_.get(), &count, sizeof(count));
      }
      std::size_t next = kFirstPeer;
      for (SocketPeer& peer : peers_) {
        HandlePeer(peer, ready[next], ready[next + 1]);
        next += 2;
      }
      if ((ready[1].revents & POLLIN) != 0) {
        Accept();
      }
      RemoveEndedPeers();
      AnswerThoseWhoWait();
    }
    AnswerThoseWhoWait();  // The last save may have ended since.
    ::shutdown(listening_.get(), SHUT_RDWR);
    requests_.End();
    // Before the connection of who has asked for the end: a trainer's next save knows then.
    for (const SocketPeer& peer : peers_) {
      if (peer.session != nullptr) {
        peer.connection->Close();
      }
    }
  }

 private:
  bool Finished() {
    if (!peers_.empty() || requests_.pending() > 0) {
      idle_since_ = Clock::now();
    }
    return (requests_.stopping() && requests_.pending() == 0 && !AnyoneSilent()) ||
           Clock::now() >= idle_since_ + options_.idle;
  }

  /// Polls the wake-up, the listening socket, then each peer's connection and process.
  std::vector<pollfd> Wait() {
    const short accepted = full_ ? 0 : POLLIN;  // NOLINT(google-runtime-int): poll's
    std::vector<pollfd> fds{{wake_.get(), POLLIN, 0}, {listening_.get(), accepted, 0}};
    for (const SocketPeer& peer : peers_) {
      fds.push_back({peer.silent ? -1 : peer.socket->fd(), POLLIN, 0});
      fds.push_back({peer.process.get(), POLLIN, 0});
    }
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(idle_since_ + options_.idle - Clock::now());
    int timeout = peers_.empty() && requests_.pending() == 0
                      ? static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000))
                      : -1;
    if (AnyoneSilent()) {
      timeout = kSilentPause;
    }
    if (::poll(fds.data(), fds.size(), std::exchange(full_, false) ? kFullPause : timeout) < 0) {
      for (pollfd& fd : fds) {
        fd.revents = 0;
      }
    }
    return fds;
  }

  void HandlePeer(SocketPeer& peer, const pollfd& connection, const pollfd& process) {
    if (connection.revents != 0) {
      auto message = peer.connection->Receive(Clock::now());
      if (message.ok()) {
        HandleOrTell(peer, std::move(*message));
      } else if (message.status().code() == StatusCode::kFailedPrecondition) {
        requests_.DropFor(peer, message.status());  // The agent has no descriptor left for it.
      } else {
        requests_.Drop(peer);
      }
    }
    if (process.revents != 0) {
      peer.ended = peer.ended || peer.silent || NothingLeftToRead(*peer.socket);
    }
    if (!peer.ended && peer.silent && peer.session->LeaveIfSilentForLong()) {
      peer.ended = true;
      peer.dropped = true;
    }
  }

  /// Handles a message. Where there is no memory or no thread for the request, drops the peer and
  /// sends it the reason: the saves of other peers go on.
  void HandleOrTell(Peer& peer, AgentMessage message) {
    const Status handled = Guarded([&] { requests_.Handle(peer, std::move(message)); });
    if (handled.ok()) {
      return;
    }
    ReportEvent([&] {
      return Event{.level = EventLevel::kError,
                   .message = "a request cannot be handled: " + handled.message(),
                   .fields = {{"trainer", std::to_string(peer.pid)}}};
    });
    requests_.DropFor(peer, handled);
  }

  [[nodiscard]] bool AnyoneSilent() const {
    return std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
      return peer.silent && peer.session->trainer_lives();
    });
  }

  /// Returns true when all messages that a process sent before it exited have been read.
  static bool NothingLeftToRead(const AgentConnection& connection) {
    pollfd fd{connection.fd(), POLLIN, 0};
    return ::poll(&fd, 1, 0) <= 0 || (fd.revents & POLLIN) == 0;
  }

  void Accept() {
    FileDescriptor socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    // The connection stays in the queue, and would wake the agent again at once.
    const int error = errno;
    full_ = !socket.valid() && error != EINTR && error != ECONNABORTED;
    if (!full_) {
      full_since_.reset();
    } else if (!full_since_) {
      full_since_ = Clock::now();
    } else if (Clock::now() - *full_since_ > kFullForLong) {
      RefuseOne(error);
    }
    int pid = 0;
    if (!socket.valid() || peers_.size() >= kMostConnections ||
        !CheckPeer(socket.get(), &pid).ok()) {
      return;
    }
    constexpr timeval kTimeout{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &kTimeout, sizeof(kTimeout));
    SocketPeer& peer = peers_.emplace_back();
    peer.pid = pid;
    peer.socket = std::make_shared<AgentConnection>(std::move(socket));
    peer.connection = peer.socket;
    if (pid > 0) {
      peer.process = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    }
    if (peer.process.valid()) {
      peer.has_exited = [fd = peer.process.get()] {
        pollfd process{fd, POLLIN, 0};
        return ::poll(&process, 1, 0) != 0;
      };
    }
  }

  /// Accepts a connection with the descriptor that is kept for this, sends it the reason why the
  /// agent cannot serve it, and closes it.
  void RefuseOne(int error) {
    (void)Guarded([&] {
      spare_ = FileDescriptor();
      FileDescriptor socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (socket.valid() && CheckPeer(socket.get(), nullptr).ok()) {
        AgentConnection peer(std::move(socket));
        // What is closed with unread messages is reset, and then the reason does not arrive.
        (void)peer.Receive(Clock::now() + std::chrono::milliseconds(kFullPause));
        (void)peer.Send(RefusalOfAgent(SystemError("accept a connection", error)));
      }
    });
    spare_ = Spare();
  }

  void RemoveEndedPeers() {
    for (Peer& peer : peers_) {
      if (peer.ended) {
        requests_.EndOf(peer);
      }
    }
    std::erase_if(peers_, [](const Peer& peer) { return peer.ended; });
    requests_.RemoveEnded();
  }

  void AnswerThoseWhoWait() {
    if (requests_.pending() > 0 || AnyoneSilent()) {
      return;  // The saves of a silent peer are undecided yet.
    }
    for (Peer& peer : peers_) {
      if (peer.waits) {
        (void)peer.connection->Send({AgentVerb::kOk, 0, {}, {}});
        peer.waits.reset();
      }
    }
  }

  const AgentServerOptions& options_;
  const FileDescriptor listening_;
  const FileDescriptor wake_;
  FileDescriptor spare_;  // Is closed to accept a connection when no other descriptor is left.
  bool full_ = false;     // No descriptors are left for new connections.
  std::optional<Clock::time_point> full_since_;
  Clock::time_point idle_since_ = Clock::now();
  AgentRequests requests_;  // Outlives the sessions, which the peers share.
  std::list<SocketPeer> peers_;
};

}  // namespace

Status RunAgent(const AgentServerOptions& options) {
  const AgentEndpoint endpoint = EndpointIn(options.directory);
  VARVE_RETURN_IF_ERROR(CheckPrivate(endpoint.directory, /*make=*/true));
  VARVE_ASSIGN_OR_RETURN(const FileDescriptor lock, LockEndpoint(endpoint));  // Step 1.
  VARVE_ASSIGN_OR_RETURN(FileDescriptor listening, Listen(endpoint));         // Step 2.
  FileDescriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) {
    return SystemError("make an eventfd", errno);
  }
  FileDescriptor spare = Spare();
  if (!spare.valid()) {
    return SystemError("open /dev/null", errno);
  }
  (void)IsTraced();  // Where to is relative to the directory that the agent was started in.
  if (options.listening && !options.listening()) {
    return Status::Ok();
  }
  ReportEvent([&] {
    return Event{
        .message = "the agent begins: " + endpoint.directory,
        .fields = {{"version", std::string(Version())}, {"pid", std::to_string(::getpid())}}};
  });
  {
    AgentServer server(options, std::move(listening), std::move(wake), std::move(spare));
    server.Run();
    ::unlink(endpoint.socket.c_str());
  }  // The connections end: who has asked for the end learns that it came. So do all threads.
  ReportEvent({.message = "the agent has ended"});  // The last line of its log.
  return Status::Ok();
}

}  // namespace varve
