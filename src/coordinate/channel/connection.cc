#include "coordinate/channel/connection.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/guarded.h"

namespace varve {
namespace {

/// A rank that has not proved yet that it belongs to the job may send no more than this.
constexpr std::uint64_t kMaxUntrustedBytes = 4096;
/// More is no message of a rank: something else answers at its address.
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 40;
/// A smaller payload is sent in one piece with its header.
constexpr std::size_t kSmallPayload = 4096;
constexpr auto kUnanswered = std::chrono::minutes(2);
constexpr std::uint8_t kFewestRetries = 3;

Status Closed() { return Unavailable(kLostReason); }

}  // namespace

Connection::Connection(Socket socket, bool trusted)
    : socket_(std::move(socket)), trusted_(trusted) {
  const auto set = [&](int level, int name, int value) {
    (void)::setsockopt(fd(), level, name, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // A machine that vanishes without closing is noticed after two minutes: by this where it has
  // acknowledged all that was sent, and else by IsUnanswered.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 60);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 6);
}

// The system would send it again for about 15 minutes (Linux's tcp_retries2). TCP_USER_TIMEOUT would
// end that, and also a connection whose other side lives and reads nothing for so long: a rank that still evaluates.
bool Connection::IsUnanswered() const {
  tcp_info info{};
  socklen_t size = sizeof(info);
  return ::getsockopt(fd(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
         info.tcpi_retransmits >= kFewestRetries &&
         std::chrono::milliseconds(info.tcpi_last_ack_recv) >= kUnanswered;
}

void Connection::Put(Frame frame) {
  Bytes header;
  ByteWriter out(&header);
  out.U8(static_cast<std::uint8_t>(frame.kind));
  out.U64(frame.call);
  out.U64(frame.payload.size());
  unsent_bytes_ += header.size() + frame.payload.size();
  if (frame.payload.size() <= kSmallPayload) {
    unsent_.push_back(header + frame.payload);
  } else {
    unsent_.push_back(std::move(header));
    unsent_.push_back(std::move(frame.payload));
  }
}

Status Connection::Write() {
  while (!unsent_.empty()) {
    const std::string& first = unsent_.front();
    const ssize_t sent = ::send(fd(), first.data() + sent_, first.size() - sent_, MSG_NOSIGNAL);
    if (sent < 0) {
      return errno == EAGAIN || errno == EINTR ? Status::Ok() : Closed();
    }
    sent_ += static_cast<std::size_t>(sent);
    unsent_bytes_ -= static_cast<std::size_t>(sent);
    if (sent_ == first.size()) {
      unsent_.pop_front();
      sent_ = 0;
    }
  }
  return Status::Ok();
}

Result<std::optional<Frame>> Connection::Read() {
  while (true) {
    if (header_read_ == kHeaderBytes && !has_room_) {
      VARVE_RETURN_IF_ERROR(MakeRoom());
    }
    if (has_room_ && payload_read_ == reading_.payload.size()) {
      header_read_ = payload_read_ = 0;
      has_room_ = false;
      return std::optional(std::exchange(reading_, {}));
    }
    char* const to =
        has_room_ ? reading_.payload.data() + payload_read_ : header_.data() + header_read_;
    const std::size_t room =
        has_room_ ? reading_.payload.size() - payload_read_ : kHeaderBytes - header_read_;
    const ssize_t arrived = ::recv(fd(), to, room, 0);
    if (arrived <= 0) {
      return arrived < 0 && (errno == EAGAIN || errno == EINTR)
                 ? Result<std::optional<Frame>>(std::nullopt)
                 : Closed();
    }
    (has_room_ ? payload_read_ : header_read_) += static_cast<std::size_t>(arrived);
  }
}

/// Makes room for the payload of the header that was read. Errors: that there is no memory for it.
Status Connection::MakeRoom() {
  ByteReader in(std::string_view(header_.data(), header_.size()));
  const std::uint8_t kind = in.U8();
  reading_.call = in.U64();
  const std::uint64_t size = in.U64();
  if (kind < static_cast<std::uint8_t>(FrameKind::kHello) ||
      kind > static_cast<std::uint8_t>(kLastFrameKind)) {
    return Unavailable("the other side sends what no rank does");
  }
  reading_.kind = static_cast<FrameKind>(kind);
  if (!trusted_ && (reading_.kind != FrameKind::kHello || size > kMaxUntrustedBytes)) {
    return Unavailable("the other side is no rank of this job");
  }
  if (size > kMaxBytes) {
    return Unavailable("the other side announces " + std::to_string(size) + " bytes");
  }
  return Guarded([&] {
    reading_.payload.resize(size);
    has_room_ = true;
  });
}

}  // namespace varve
