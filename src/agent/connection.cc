#include "agent/connection.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/error_codec.h"
#include "base/fields.h"
#include "varve/metadata.h"

namespace varve {
namespace {

// After this time the peer counts as dead: it would delay all others.
constexpr auto kSendTimeout = std::chrono::seconds(10);
constexpr std::size_t kFrameBytes = 1 + 8;

/// Limits how long connect(2) and sendmsg(2) may wait on the socket: until `deadline` from now.
void SetSendTimeout(const FileDescriptor& socket, Deadline deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::microseconds>(deadline - std::chrono::steady_clock::now());
  const std::int64_t most = std::max<std::int64_t>(left.count(), 1);  // 0 would be without limit.
  const timeval limit{.tv_sec = most / 1'000'000, .tv_usec = most % 1'000'000};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

/// Milliseconds for poll, rounded up; -1 for ever.
int PollTime(Deadline deadline) {
  if (deadline == Deadline::max()) {
    return -1;
  }
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(
      std::clamp<std::int64_t>(left.count(), 0, std::numeric_limits<int>::max()));
}

using Control = std::array<char, CMSG_SPACE(kMaxAgentFds * sizeof(int))>;

/// Takes ownership of all descriptors that came with a message.
std::vector<FileDescriptor> TakeDescriptors(msghdr* header) {
  std::vector<FileDescriptor> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(header); part != nullptr; part = CMSG_NXTHDR(header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, AgentReport::File>& file) {
  archive(file.path, file.rank, file.bytes, file.state, file.seconds, file.trainer_lives);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, AgentReport>& report) {
  auto pid = static_cast<std::uint32_t>(report.pid);
  archive(report.version, pid, report.stopping, report.trainers, report.saves, report.held);
  if constexpr (!Archive::kWrites) {
    report.pid = static_cast<int>(pid);
  }
}

std::string AgentVersion() { return std::string(Version()) + "+agent.12"; }

Bytes EncodeRefusal(const Status& status) {
  Bytes bytes;
  ByteWriter out(&bytes);
  EncodeError(status, &out);
  bytes.resize(std::min(bytes.size(), kMaxAgentPayload));  // The message comes last.
  return bytes;
}

Status DecodeRefusal(std::string_view payload) {
  auto error = DecodeError(std::string(payload));
  return error ? std::move(*error) : DataLoss("the agent refuses without a reason");
}

Bytes EncodeAgentReport(const AgentReport& report) { return EncodeFields(report); }

Result<AgentReport> DecodeAgentReport(std::string_view bytes) {
  return DecodeFields<AgentReport>(bytes);
}

Status AgentConnection::Send(const AgentMessage& message) {
  if (message.payload.size() > kMaxAgentPayload || message.fds.size() > kMaxAgentFds) {
    return Internal("a message to or from the agent that is too large");
  }
  Bytes frame;
  ByteWriter out(&frame);
  out.U8(static_cast<std::uint8_t>(message.verb));
  out.U64(message.ticket);
  out.Raw(message.payload);
  iovec data{.iov_base = frame.data(), .iov_len = frame.size()};
  alignas(cmsghdr) Control control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (!message.fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(message.fds.size() * sizeof(int));
    cmsghdr* const part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(message.fds.size() * sizeof(int));
    std::array<int, kMaxAgentFds> fds{};
    std::transform(message.fds.begin(), message.fds.end(), fds.begin(),
                   [](const FileDescriptor& fd) { return fd.get(); });
    std::memcpy(CMSG_DATA(part), fds.data(), message.fds.size() * sizeof(int));
  }
  const std::scoped_lock lock(sending_);
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent >= 0 ? Status::Ok()
                   : SystemError("send to the other side of the agent's socket", errno);
}

Result<AgentMessage> AgentConnection::Receive(Deadline deadline) {
  pollfd waiting{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    ready = ::poll(&waiting, 1, PollTime(deadline));
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) {
    return Unavailable("no answer before the deadline").With({.system_error = ETIMEDOUT});
  }
  Bytes frame(kFrameBytes + kMaxAgentPayload, '\0');
  iovec data{.iov_base = frame.data(), .iov_len = frame.size()};
  alignas(cmsghdr) Control control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) {
    return got == 0 ? Unavailable("the other side of the agent's socket has closed it or exited")
                    : SystemError("receive from the other side of the agent's socket", errno);
  }
  AgentMessage message;
  message.fds = TakeDescriptors(&header);
  ByteReader in({frame.data(), static_cast<std::size_t>(got)});
  const std::uint8_t verb = in.U8();
  message.ticket = in.U64();
  message.payload = std::string(in.Raw(in.remaining()));
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    // The system closes what does not fit: the message is not whole, and cannot be asked for again.
    return SystemError("receive a descriptor on the agent's socket", EMFILE);
  }
  if (in.failed() || verb < static_cast<std::uint8_t>(AgentVerb::kHello) ||
      verb > static_cast<std::uint8_t>(AgentVerb::kBye) || (header.msg_flags & MSG_TRUNC) != 0) {
    return DataLoss("a message on the agent's socket that is none");
  }
  message.verb = static_cast<AgentVerb>(verb);
  return message;
}

bool AgentConnection::IsOpen() const {
  pollfd look{.fd = socket_.get(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&look, 1, 0) == 0;
}

void AgentConnection::Close() { ::shutdown(socket_.get(), SHUT_RDWR); }

Result<FileDescriptor> ConnectToSocket(const std::string& socket_path, Deadline deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof(address.sun_path)) {
    return InvalidArgument("the name of the agent's socket is too long: " + socket_path);
  }
  std::memcpy(address.sun_path, socket_path.data(), socket_path.size());
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid()) {
    return SystemError("make a socket", errno);
  }
  // An agent that is stopped takes no connections, and its queue of them may be full.
  SetSendTimeout(socket, std::min(deadline, std::chrono::steady_clock::now() + kSendTimeout));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == ENOENT || errno == ECONNREFUSED) {
      return NotFound("no agent listens at " + socket_path);
    }
    return SystemError("connect to " + socket_path, errno);
  }
  SetSendTimeout(socket, std::chrono::steady_clock::now() + kSendTimeout);
  VARVE_RETURN_IF_ERROR(CheckPeer(socket.get(), nullptr).Annotate(socket_path));
  return socket;
}

Status CheckPeer(int socket, int* pid) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return SystemError("ask who is on the other side of the agent's socket", errno);
  }
  if (peer.uid != ::geteuid() && peer.uid != 0) {
    return FailedPrecondition("the other side of the agent's socket is user " +
                              std::to_string(peer.uid) + ", not " + std::to_string(::geteuid()));
  }
  if (pid != nullptr) {
    *pid = peer.pid;
  }
  return Status::Ok();
}

}  // namespace varve
