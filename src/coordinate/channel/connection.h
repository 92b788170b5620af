/// Sockets between ranks, the frames on them, and the addresses at which rank 0 listens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/process_descriptor.h"
#include "base/time_source.h"
#include "coordinate/channel/frames.h"
#include "varve/status.h"

namespace varve {

/// A forked child that kept one would keep the parent's connection open when the parent dies.
using Socket = ProcessDescriptor;

/// A connected socket, its unsent frames and its half-read frame. No function waits: a read takes
/// the bytes that have arrived, a write sends the bytes that the socket takes.
///
/// A frame is a header of 17 bytes and a payload. The header is the kind (1 byte), the number of
/// the call and the size of the payload (8 bytes each, little-endian).
class Connection {
 public:
  /// `trusted`: the other side belongs to this job. Otherwise its first frame has to be a small
  /// kHello, which decides whether the owner reads a second one.
  Connection(Socket socket, bool trusted);

  void Put(Frame frame);
  /// Sends what the socket takes. An error: the connection is closed.
  Status Write();
  /// Returns the next frame that has arrived completely; nothing where none has. An error: the
  /// connection is closed, and no further frame comes.
  Result<std::optional<Frame>> Read();

  /// Returns true where the other side's machine has acknowledged nothing for two minutes, of what
  /// was sent to it again and again.
  [[nodiscard]] bool IsUnanswered() const;
  void Trust() { trusted_ = true; }
  [[nodiscard]] bool has_unsent() const { return !unsent_.empty(); }
  [[nodiscard]] std::size_t unsent_bytes() const { return unsent_bytes_; }
  /// The size of the payload that is being read; 0 between frames.
  [[nodiscard]] std::size_t reading_bytes() const { return reading_.payload.size(); }
  [[nodiscard]] int fd() const { return socket_.get(); }

 private:
  static constexpr std::size_t kHeaderBytes = 17;

  Status MakeRoom();

  Socket socket_;
  bool trusted_;
  std::deque<std::string> unsent_;
  std::size_t sent_ = 0;  // Of the first of them.
  std::size_t unsent_bytes_ = 0;
  std::array<char, kHeaderBytes> header_{};
  std::size_t header_read_ = 0;
  Frame reading_;
  bool has_room_ = false;  // The payload has its final size.
  std::size_t payload_read_ = 0;
};

/// The ways to rank 0's listening socket, and the channel's token.
struct Address {
  std::string version;  ///< Of Varve on rank 0.
  /// Names the machine and its network namespace; equal where the loopback device is shared.
  std::string host;
  std::vector<std::string> names;  ///< Numeric IP addresses, the likeliest first.
  std::uint32_t port = 0;          ///< The same at all of them.
  /// Proves that a rank has read this address, and that it is this channel's listener.
  std::string token;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, Address>& address) {
  archive(address.version, address.host, address.names, address.port, address.token);
}

/// Returns "10.0.0.1 or 10.0.0.2, port 4711".
std::string ToString(const Address& address);

/// Opens a listening socket on all interfaces, to which `peers` processes will connect: the limit
/// of this process's descriptors (ulimit -n) is raised for them where it is too low, as far as the
/// hard limit goes. It is 1,024 on many systems.
///
/// The published addresses are those of the interfaces in GLOO_SOCKET_IFNAME, as for torch's own
/// gloo groups; without it those of the interfaces on the way to MASTER_ADDR and on the default
/// route, what the host's name resolves to, and then those of all interfaces, 16 at most.
Result<std::pair<Socket, Address>> Listen(int peers = 0);

/// Waits until a socket is ready for the events of poll. Errors: Unavailable at the deadline;
/// Cancelled when the descriptor `wake` becomes readable.
Status AwaitSocket(int fd, short events, TimePoint deadline, int wake);

/// Returns the system's boot id: a name of this machine until it is started again.
std::string BootId();

/// Returns a socket connected to the first address that answers before the deadline. Returns early,
/// with an error, when the descriptor `wake` becomes readable.
Result<Socket> Connect(const Address& address, TimePoint deadline, int wake);

}  // namespace varve
