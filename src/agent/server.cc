// The agent's life:
//  1. Lock the endpoint: of two that are started at once, one ends here. The lock ends with its
//     holder, so a killed agent is in nobody's way.
//  2. Listen. The socket of a dead agent is replaced; trainers that were connected to it know.
//  3. One thread takes connections and messages, and does nothing that lasts. Each trainer's saves
//     are written by a thread of their own (session.cc).
//  4. A trainer is gone when its connection ends, or when its process does: children that it forked
//     may hold the connection open.
//  5. When nobody has been connected and nothing was left to write for the idle time, or when it is
//     told to stop and everything is written, it ends. The socket's name goes before the lock does:
//     who starts the next agent must not find the name of this one taken away under it.

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "agent/connection.h"
#include "agent/endpoint.h"
#include "agent/held_files.h"
#include "agent/report.h"
#include "agent/session.h"
#include "varve/agent.h"
#include "varve/version.h"

namespace varve {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMostConnections = 1024;
constexpr int kFullPause = 100;        // Milliseconds.
constexpr std::size_t kFirstPeer = 2;  // In what Wait returns.

/// Somebody who is connected: a trainer once it has attached its memory, a command otherwise.
struct Peer {
  std::shared_ptr<AgentConnection> connection;
  FileDescriptor process;  // A pidfd; none where the peer's process cannot be seen.
  bool greeted = false;
  bool gone = false;
  bool dropped = false;            // By us: its process may live, and use its memory.
  std::optional<AgentVerb> waits;  // kDrain or kStop, for the end of all saves.
  std::shared_ptr<AgentSession> session;
};

AgentMessage Answer(AgentVerb verb, std::uint64_t turn = 0, Bytes payload = {}) {
  return {verb, turn, std::move(payload), {}};
}

AgentMessage Refusal(const Status& status, std::uint64_t turn = 0) {
  return Answer(AgentVerb::kRefused, turn, EncodeRefusal(status));
}

class AgentServer {
 public:
  AgentServer(const AgentServerOptions& options, FileDescriptor listening, FileDescriptor wake)
      : options_(options),
        listening_(std::move(listening)),
        wake_(std::move(wake)),
        held_(options.idle) {}

  void Run() {
    while (!Finished()) {
      const std::vector<pollfd> ready = Wait();
      if ((ready[0].revents & POLLIN) != 0) {
        std::uint64_t count = 0;
        (void)!::read(wake_.get(), &count, sizeof(count));
      }
      std::size_t next = kFirstPeer;
      for (Peer& peer : peers_) {
        HandlePeer(peer, ready[next], ready[next + 1]);
        next += 2;
      }
      if ((ready[1].revents & POLLIN) != 0) {
        Accept();
      }
      RemoveTheGone();
      AnswerThoseWhoWait();
    }
    AnswerThoseWhoWait();  // The last save may have ended since.
    ::shutdown(listening_.get(), SHUT_RDWR);
    // Trainers that live use their memory again once they see us gone.
    held_.ForgetAll();
  }

 private:
  [[nodiscard]] std::size_t Pending() {
    std::size_t pending = 0;
    for (const auto& session : sessions_) {
      pending += session->pending();
    }
    return pending;
  }

  bool Finished() {
    if (!peers_.empty() || Pending() > 0) {
      idle_since_ = Clock::now();
    }
    return (stopping_ && Pending() == 0) || Clock::now() >= idle_since_ + options_.idle;
  }

  /// The wake-up, the listening socket, then of each peer its connection and its process.
  std::vector<pollfd> Wait() {
    const short accepted = full_ ? 0 : POLLIN;  // NOLINT(google-runtime-int): poll's
    std::vector<pollfd> fds{{wake_.get(), POLLIN, 0}, {listening_.get(), accepted, 0}};
    for (const Peer& peer : peers_) {
      fds.push_back({peer.connection->fd(), POLLIN, 0});
      fds.push_back({peer.process.get(), POLLIN, 0});
    }
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(idle_since_ + options_.idle - Clock::now());
    const int patience = peers_.empty() && Pending() == 0
                             ? static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000))
                             : -1;
    if (::poll(fds.data(), fds.size(), std::exchange(full_, false) ? kFullPause : patience) < 0) {
      for (pollfd& fd : fds) {
        fd.revents = 0;
      }
    }
    return fds;
  }

  void HandlePeer(Peer& peer, const pollfd& connection, const pollfd& process) {
    if (connection.revents != 0) {
      auto message = peer.connection->Receive(Clock::now());
      if (!message.ok() || !HandleOrTell(peer, std::move(*message))) {
        Drop(peer);
      }
    }
    if (process.revents != 0) {
      peer.gone = peer.gone || NothingLeftToRead(*peer.connection);
    }
  }

  /// False where there is no memory, or no thread, for what it wants: that ends no other's save.
  bool HandleOrTell(Peer& peer, AgentMessage message) {
    try {
      Handle(peer, std::move(message));
      return true;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "varve-agent: %s\n", error.what());
      return false;
    }
  }

  /// It has gone, or is not to be listened to any more.
  static void Drop(Peer& peer) {
    pollfd process{peer.process.get(), POLLIN, 0};
    peer.gone = true;
    peer.dropped = peer.connection->IsOpen() && ::poll(&process, 1, 0) == 0;
  }

  /// What a process said before it died counts.
  static bool NothingLeftToRead(const AgentConnection& connection) {
    pollfd fd{connection.fd(), POLLIN, 0};
    return ::poll(&fd, 1, 0) <= 0 || (fd.revents & POLLIN) == 0;
  }

  void Accept() {
    FileDescriptor socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    // Whoever wants to connect stays in the queue, and would wake us again at once.
    full_ = !socket.valid() && errno != EINTR && errno != ECONNABORTED;
    int pid = 0;
    if (!socket.valid() || peers_.size() >= kMostConnections ||
        !CheckPeer(socket.get(), &pid).ok()) {
      return;
    }
    constexpr timeval kPatience{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
    Peer peer;
    peer.connection = std::make_shared<AgentConnection>(std::move(socket));
    if (pid > 0) {
      peer.process = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    }
    peers_.push_back(std::move(peer));
  }

  void RemoveTheGone() {
    for (Peer& peer : peers_) {
      if (peer.gone && peer.session != nullptr && !peer.dropped) {
        peer.session->TrainerIsGone();
      } else if (peer.gone && peer.session != nullptr) {
        peer.session->Abandon();
        held_.ForgetAll(peer.session->number());
        peer.connection->Close();  // What it then learns.
      }
    }
    std::erase_if(peers_, [](const Peer& peer) { return peer.gone; });
    std::erase_if(sessions_, [](const auto& session) { return session->over(); });
  }

  void AnswerThoseWhoWait() {
    if (Pending() > 0) {
      return;
    }
    for (Peer& peer : peers_) {
      if (peer.waits) {
        (void)peer.connection->Send(Answer(AgentVerb::kOk));
        peer.waits.reset();
      }
    }
  }

  void Handle(Peer& peer, AgentMessage message) {
    const bool any_version = message.verb == AgentVerb::kHello ||
                             message.verb == AgentVerb::kDrain || message.verb == AgentVerb::kStop;
    if (!peer.greeted && !any_version) {
      Drop(peer);
      return;
    }
    switch (message.verb) {
      case AgentVerb::kHello: Greet(peer, message); return;
      case AgentVerb::kAttach: Reply(peer, 0, Attach(peer, std::move(message))); return;
      case AgentVerb::kFind: SendHeld(peer, message.payload); return;
      case AgentVerb::kStatus: SendStatus(peer); return;
      case AgentVerb::kStop:
        stopping_ = true;
        peer.waits = message.verb;
        return;
      case AgentVerb::kDrain: peer.waits = message.verb; return;
      default: break;
    }
    if (peer.session == nullptr) {
      Drop(peer);
      return;
    }
    switch (message.verb) {
      case AgentVerb::kHandOver: Reply(peer, message.turn, TakeSave(peer, message)); return;
      case AgentVerb::kPass: peer.session->Pass(message.turn); return;
      case AgentVerb::kCancel: peer.session->Cancel(message.turn); return;
      case AgentVerb::kForget:
        held_.Forget(peer.session->number(), message.turn);
        (void)peer.connection->Send(Answer(AgentVerb::kForgotten, message.turn));
        return;
      default: Drop(peer);
    }
  }

  static void Reply(Peer& peer, std::uint64_t turn, const Status& status) {
    const AgentMessage answer = status.ok() ? Answer(AgentVerb::kOk, turn) : Refusal(status, turn);
    if (!peer.connection->Send(answer).ok()) {
      Drop(peer);
    }
  }

  void Greet(Peer& peer, const AgentMessage& message) {
    if (message.payload != Version()) {
      Reply(peer, 0,
            FailedPrecondition("the agent that runs is of version " + std::string(Version()) +
                               ", not " + message.payload.substr(0, 64) +
                               "; end it with `varve agent stop`"));
      return;
    }
    peer.greeted = true;
    Reply(peer, 0, Status::Ok());
  }

  Status Attach(Peer& peer, AgentMessage message) {
    ByteReader in(message.payload);
    const std::uint64_t blocks = in.U64();
    const std::uint64_t first_turn = in.U64();
    if (!in.Finish().ok() || message.fds.size() != 1 || peer.session != nullptr) {
      return DataLoss("memory that is not attached as it should be");
    }
    if (stopping_) {
      return FailedPrecondition("the agent is stopping");
    }
    VARVE_ASSIGN_OR_RETURN(auto pool, PoolMemory::Map(std::move(message.fds[0]), blocks));
    AgentSession::Surroundings around;
    around.number = next_session_++;
    around.trainer = peer.connection;
    around.held = &held_;
    around.patience = options_.patience;
    around.changed = [fd = wake_.get()] {
      const std::uint64_t one = 1;
      (void)!::write(fd, &one, sizeof(one));
    };
    peer.session = std::make_shared<AgentSession>(std::move(around), std::move(pool), first_turn);
    sessions_.push_back(peer.session);
    return Status::Ok();
  }

  Status TakeSave(const Peer& peer, const AgentMessage& message) const {
    if (stopping_) {
      return FailedPrecondition("the agent is stopping");
    }
    if (message.fds.size() != 1) {
      return DataLoss("a save without what there is to know of it");
    }
    VARVE_ASSIGN_OR_RETURN(const Bytes encoded, ReadBlob(message.fds[0]));
    return peer.session->HandOver(message.turn, encoded);
  }

  void SendHeld(Peer& peer, const std::string& path) {
    for (const Held& held : held_.Find(path)) {
      auto blob = MakeBlob(EncodeHeldFile(held.file));
      if (!blob.ok()) {
        continue;  // It is read from the disk then.
      }
      AgentMessage message{AgentVerb::kHeld, 0, {}, {}};
      message.fds.emplace_back(::dup(held.pool->fd().get()));
      message.fds.push_back(std::move(*blob));
      message.fds.emplace_back(::dup(held.page->fd().get()));
      if (Status sent = peer.connection->Send(message); !sent.ok()) {
        Drop(peer);
        return;
      }
    }
    Reply(peer, 0, Status::Ok());
  }

  AgentReport Report() {
    AgentReport report;
    report.version = Version();
    report.pid = ::getpid();
    report.stopping = stopping_;
    for (const auto& session : sessions_) {
      report.trainers += session->trainer_lives() ? 1 : 0;
      const auto files = session->Files();
      report.saves.insert(report.saves.end(), files.begin(), files.end());
    }
    for (const Held& held : held_.All()) {
      report.held.push_back(
          {held.file.path, held.file.rank, held.file.image.bytes(), false, !held.orphan_since});
    }
    return report;
  }

  void SendStatus(Peer& peer) {
    AgentMessage message = Answer(AgentVerb::kOk);
    auto blob = MakeBlob(EncodeAgentReport(Report()));
    if (!blob.ok()) {
      Reply(peer, 0, blob.status());
      return;
    }
    message.fds.push_back(std::move(*blob));
    if (!peer.connection->Send(message).ok()) {
      Drop(peer);
    }
  }

  const AgentServerOptions& options_;
  const FileDescriptor listening_;
  const FileDescriptor wake_;
  bool stopping_ = false;
  bool full_ = false;  // There are no descriptors left for those who want to connect.
  Clock::time_point idle_since_ = Clock::now();
  std::uint64_t next_session_ = 1;
  HeldFiles held_;
  std::vector<std::shared_ptr<AgentSession>> sessions_;  // With those whose trainers are gone.
  std::list<Peer> peers_;
};

}  // namespace

Status RunAgent(const AgentServerOptions& options) {
  const AgentEndpoint endpoint = EndpointIn(options.directory);
  VARVE_RETURN_IF_ERROR(CheckPrivate(endpoint.directory, /*make=*/true));
  VARVE_ASSIGN_OR_RETURN(const FileDescriptor lock, LockEndpoint(endpoint));  // Step 1.
  VARVE_ASSIGN_OR_RETURN(FileDescriptor listening, Listen(endpoint));         // Step 2.
  FileDescriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) {
    return Unavailable(std::string("make an eventfd: ") + std::strerror(errno));
  }
  if (options.listening && !options.listening()) {
    return Status::Ok();
  }
  AgentServer(options, std::move(listening), std::move(wake)).Run();
  ::unlink(endpoint.socket.c_str());
  return Status::Ok();
}

}  // namespace varve
