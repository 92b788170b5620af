#include "share/peer_link.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <climits>
#include <string>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/checksum.h"
#include "base/file_descriptor.h"
#include "base/time_source.h"

namespace varve {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers go as they are in memory");

/// Time to connect, and to be greeted then.
constexpr auto kConnect = std::chrono::seconds(3);
/// Longest time in which an answer does not move on, and in which one that connects says who it is.
constexpr auto kLongestWait = std::chrono::seconds(10);

using Numbers = std::array<std::uint64_t, 3>;

/// Sends or receives all of the memory. `limit` is the longest time in which no byte moves. Errors:
/// Unavailable, with no system error where the other side has closed the connection.
template <auto kMove, short kEvents>
Status MoveAll(int fd, int wake, std::chrono::seconds limit, std::vector<iovec> memory) {
  std::size_t at = 0;
  TimePoint until = Now() + limit;
  while (at < memory.size()) {
    msghdr message{};
    message.msg_iov = &memory[at];
    message.msg_iovlen = std::min<std::size_t>(memory.size() - at, IOV_MAX);
    const ssize_t moved = kMove(fd, &message, MSG_NOSIGNAL);
    if (moved < 0 && (errno == EAGAIN || errno == EINTR)) {
      VARVE_RETURN_IF_ERROR(AwaitSocket(fd, kEvents, until, wake));
      continue;
    }
    if (moved <= 0) {
      return moved < 0 ? SystemError("connection", errno) : Unavailable("the connection is closed");
    }
    until = Now() + limit;
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

Status SendAll(const Socket& socket, int wake, std::vector<iovec> memory,
               std::chrono::seconds limit = kLongestWait) {
  return MoveAll<::sendmsg, POLLOUT>(socket.get(), wake, limit, std::move(memory));
}

Status ReceiveAll(const Socket& socket, int wake, std::vector<iovec> memory,
                  std::chrono::seconds limit = kLongestWait) {
  return MoveAll<::recvmsg, POLLIN>(socket.get(), wake, limit, std::move(memory));
}

/// Receives a short text, all of it in time.
Result<std::string> ReceiveText(const Socket& socket, int wake, std::size_t size,
                                std::chrono::seconds limit) {
  std::string text;
  const TimePoint until = Now() + limit;
  while (text.size() < size) {
    VARVE_RETURN_IF_ERROR(AwaitSocket(socket.get(), POLLIN, until, wake));
    char byte = 0;
    if (::recv(socket.get(), &byte, 1, 0) != 1) {
      return Unavailable("the connection is closed");
    }
    text += byte;
  }
  return text;
}

/// The two halves of a token: each side proves by one of them that it has read the address.
std::string Half(std::string_view token, bool second) {
  const std::size_t half = token.size() / 2;
  return std::string(second ? token.substr(half) : token.substr(0, half));
}

}  // namespace

PeerLink::PeerLink(Socket socket, int wake) : socket_(std::move(socket)), wake_(wake) {
  const int on = 1;
  (void)::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

Result<PeerLink> PeerLink::To(const Address& address, int wake) {
  VARVE_ASSIGN_OR_RETURN(Socket socket, Connect(address, Now() + kConnect, wake));
  PeerLink link(std::move(socket), wake);
  std::string mine = Half(address.token, false);
  VARVE_RETURN_IF_ERROR(SendAll(link.socket_, wake, {{mine.data(), mine.size()}}));
  const std::string want = Half(address.token, true);
  VARVE_ASSIGN_OR_RETURN(const std::string given,
                         ReceiveText(link.socket_, wake, want.size(), kConnect));
  return given == want ? Result<PeerLink>(std::move(link))
                       : Unavailable("another program listens at " + ToString(address));
}

Result<bool> PeerLink::Fetch(const PeerRequest& request, bool has_sum, std::chrono::seconds limit,
                             std::span<const std::span<std::byte>> parts) {
  Numbers numbers{request.file, request.range.begin, request.range.end};
  VARVE_RETURN_IF_ERROR(SendAll(socket_, wake_, {{numbers.data(), sizeof(numbers)}}, limit));
  char has_bytes = 0;
  VARVE_RETURN_IF_ERROR(ReceiveAll(socket_, wake_, {{&has_bytes, 1}}, limit));
  if (has_bytes != 1) {
    return false;
  }
  std::vector<iovec> memory;
  memory.reserve(parts.size() + 1);
  for (const std::span<std::byte> part : parts) {
    memory.push_back({part.data(), part.size()});
  }
  std::uint32_t sent = 0;
  memory.push_back({&sent, sizeof(sent)});
  VARVE_RETURN_IF_ERROR(ReceiveAll(socket_, wake_, std::move(memory), limit));
  std::uint32_t crc = 0;
  for (std::size_t i = 0; has_sum && i < parts.size(); ++i) {
    crc = Crc32cExtend(crc, parts[i]);
  }
  return crc == sent ? Result<bool>(true) : DataLoss("bytes have changed on their way");
}

Result<bool> PeerLink::Greet(std::string_view token) {
  const std::string want = Half(token, false);
  VARVE_ASSIGN_OR_RETURN(const std::string given,
                         ReceiveText(socket_, wake_, want.size(), kLongestWait));
  if (given != want) {
    return false;
  }
  std::string mine = Half(token, true);
  VARVE_RETURN_IF_ERROR(SendAll(socket_, wake_, {{mine.data(), mine.size()}}));
  return true;
}

Result<std::optional<PeerRequest>> PeerLink::NextRequest() {
  VARVE_RETURN_IF_ERROR(AwaitSocket(socket_.get(), POLLIN, TimePoint::max(), wake_));
  char first = 0;
  if (::recv(socket_.get(), &first, 1, MSG_PEEK) == 0) {
    return std::optional<PeerRequest>();
  }
  Numbers numbers{};
  VARVE_RETURN_IF_ERROR(ReceiveAll(socket_, wake_, {{numbers.data(), sizeof(numbers)}}));
  return std::optional(PeerRequest{numbers[0], {numbers[1], numbers[2]}});
}

Status PeerLink::Answer(std::optional<std::span<const std::byte>> bytes, bool has_sum) {
  char has_bytes = bytes ? 1 : 0;
  std::uint32_t crc = bytes && has_sum ? Crc32cExtend(0, *bytes) : 0;
  std::vector<iovec> memory{{&has_bytes, 1}};
  if (bytes) {  // sendmsg only reads it.
    memory.push_back({const_cast<std::byte*>(bytes->data()), bytes->size()});
    memory.push_back({&crc, sizeof(crc)});
  }
  return SendAll(socket_, wake_, std::move(memory));
}

}  // namespace varve
