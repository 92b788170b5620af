#include "share/peer_link.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <string>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/time_source.h"

namespace varve {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers go as they are in memory");

/// Longest time in which no byte comes or goes.
constexpr auto kLongestWait = std::chrono::seconds(10);

using Numbers = std::array<std::uint64_t, 3>;

Status Failed(const char* what, int error) {
  return Unavailable(std::string(what) + ": " + std::strerror(error)).With({.system_error = error});
}

/// Waits until a socket is ready for `events`.
Status Await(int fd, short events, int wake, TimePoint until) {
  std::array<pollfd, 2> ready{{{fd, events, 0}, {wake, POLLIN, 0}}};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Now()).count();
    const int wait = until == TimePoint::max()
                         ? -1
                         : static_cast<int>(std::clamp<decltype(left)>(left, 0, INT_MAX));
    const int count = ::poll(ready.data(), ready.size(), wait);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (ready[1].revents != 0) {
      return Status(StatusCode::kCancelled, "the read has been given up");
    }
    return count > 0 ? Status::Ok() : Failed("wait", count < 0 ? errno : ETIMEDOUT);
  }
}

/// Sends or receives all of the memory. Errors: Unavailable, with no system error where the other
/// side has closed the connection.
template <auto kMove, short kEvents>
Status MoveAll(int fd, int wake, std::vector<iovec> memory, TimePoint first_byte) {
  std::size_t at = 0;
  TimePoint until = first_byte;
  while (at < memory.size()) {
    msghdr message{};
    message.msg_iov = &memory[at];
    message.msg_iovlen = std::min<std::size_t>(memory.size() - at, IOV_MAX);
    const ssize_t moved = kMove(fd, &message, MSG_NOSIGNAL);
    if (moved < 0 && (errno == EAGAIN || errno == EINTR)) {
      VARVE_RETURN_IF_ERROR(Await(fd, kEvents, wake, until));
      continue;
    }
    if (moved <= 0) {
      return moved < 0 ? Failed("connection", errno) : Unavailable("the connection is closed");
    }
    until = Now() + kLongestWait;
    auto left = static_cast<std::size_t>(moved);
    for (; at < memory.size() && left >= memory[at].iov_len; ++at) {
      left -= memory[at].iov_len;
    }
    if (at < memory.size()) {
      memory[at].iov_base = static_cast<char*>(memory[at].iov_base) + left;
      memory[at].iov_len -= left;
    }
  }
  return Status::Ok();
}

Status SendAll(const Socket& socket, int wake, std::vector<iovec> memory) {
  return MoveAll<::sendmsg, POLLOUT>(socket.get(), wake, std::move(memory), Now() + kLongestWait);
}

Status ReceiveAll(const Socket& socket, int wake, std::vector<iovec> memory,
                  TimePoint first_byte = Now() + kLongestWait) {
  return MoveAll<::recvmsg, POLLIN>(socket.get(), wake, std::move(memory), first_byte);
}

}  // namespace

Result<PeerLink> PeerLink::To(const Address& address, int wake) {
  VARVE_ASSIGN_OR_RETURN(Socket socket, Connect(address, Now() + kLongestWait, wake));
  const int on = 1;
  (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  std::string token = address.token;
  VARVE_RETURN_IF_ERROR(SendAll(socket, wake, {{token.data(), token.size()}}));
  return PeerLink(std::move(socket), wake);
}

Result<bool> PeerLink::Fetch(const PeerRequest& request,
                             std::span<const std::span<std::byte>> parts) {
  Numbers numbers{request.file, request.range.begin, request.range.end};
  VARVE_RETURN_IF_ERROR(SendAll(socket_, wake_, {{numbers.data(), sizeof(numbers)}}));
  char has_bytes = 0;
  VARVE_RETURN_IF_ERROR(ReceiveAll(socket_, wake_, {{&has_bytes, 1}}));
  if (has_bytes != 1) {
    return false;
  }
  std::vector<iovec> memory;
  memory.reserve(parts.size());
  for (const std::span<std::byte> part : parts) {
    memory.push_back({part.data(), part.size()});
  }
  VARVE_RETURN_IF_ERROR(ReceiveAll(socket_, wake_, std::move(memory)));
  return true;
}

Result<bool> PeerLink::Greet(std::string_view token) {
  std::string given(token.size(), '\0');
  VARVE_RETURN_IF_ERROR(ReceiveAll(socket_, wake_, {{given.data(), given.size()}}));
  return given == token;
}

Result<std::optional<PeerRequest>> PeerLink::NextRequest() {
  VARVE_RETURN_IF_ERROR(Await(socket_.get(), POLLIN, wake_, TimePoint::max()));
  char first = 0;
  if (::recv(socket_.get(), &first, 1, MSG_PEEK) == 0) {
    return std::optional<PeerRequest>();
  }
  Numbers numbers{};
  VARVE_RETURN_IF_ERROR(ReceiveAll(socket_, wake_, {{numbers.data(), sizeof(numbers)}}));
  return std::optional(PeerRequest{numbers[0], {numbers[1], numbers[2]}});
}

Status PeerLink::Answer(std::optional<std::span<const std::byte>> bytes) {
  char has_bytes = bytes ? 1 : 0;
  std::vector<iovec> memory{{&has_bytes, 1}};
  if (bytes) {  // sendmsg only reads it.
    memory.push_back({const_cast<std::byte*>(bytes->data()), bytes->size()});
  }
  return SendAll(socket_, wake_, std::move(memory));
}

}  // namespace varve
