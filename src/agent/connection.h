/// Messages between a trainer (or a command) and the agent of its node, with file descriptors.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/file_descriptor.h"
#include "varve/coordinator.h"
#include "varve/status.h"

namespace varve {

/// Who says it to whom: T the trainer or a command, A the agent. kHello, kDrain, kStop, kOk and
/// kRefused are the same in all versions: an agent of another one can be ended.
enum class AgentVerb : std::uint8_t {
  kHello = 1,  ///< T: payload its version. A answers kOk with its own, or kRefused.
  kAttach,     ///< T: the staging memory, a memfd; payload its blocks and the first turn. A: kOk.
  kSubmit,   ///< T: the save of a turn, a memfd with a Submission, and the lease of its memory. A:
             ///< kOk or kRefused, same turn.
  kPass,     ///< T: nothing comes in that turn. No answer.
  kCancel,   ///< T: that save is not wanted. No answer.
  kForget,   ///< T: the memory of that turn is needed. A: kForgotten.
  kFind,     ///< T: payload a path. A: a kHeld for each file of it in memory, then kOk.
  kStatus,   ///< T. A: kOk with a text in JSON, in a memfd.
  kDrain,    ///< T. A: kOk when nothing is left to write. No kHello is needed.
  kStop,     ///< T. A: kOk when nothing is left to write; it then ends. No kHello is needed.
  kOk,       ///< A.
  kRefused,  ///< A: payload a code and a message.
  kDone,     ///< A: the save of that turn has ended. Payload as kRefused, or 0 and its report; or a
             ///< memfd with that.
  kForgotten,  ///< A.
  kHeld,  ///< A: memfds of the memory, a HeldFile, a page that says whether it still is, and the
          ///< memory's lease.
  kBye,   ///< T: it leaves its memory to A for good, and closes. No answer.
};

struct AgentMessage {
  AgentVerb verb = AgentVerb::kOk;
  std::uint64_t turn = 0;
  Bytes payload;  ///< At most kMaxAgentPayload; what is longer goes in a memfd.
  std::vector<FileDescriptor> fds;
};

/// What kHello says: Varve's version, and that of these messages and what is in them. The latter is
/// counted up with every change, for an agent may outlive the programs that it was installed with.
std::string AgentVersion();

inline constexpr std::size_t kMaxAgentPayload = 32768;
inline constexpr std::size_t kMaxAgentFds = 4;

/// Text that fits a payload, shortened if need be.
Bytes EncodeRefusal(const Status& status);
/// The status in a kRefused, or an error that says that it is none.
Status DecodeRefusal(std::string_view payload);

/// A connected Unix socket that keeps messages apart (SOCK_SEQPACKET). Threads: one may receive
/// while others send.
class AgentConnection {
 public:
  explicit AgentConnection(FileDescriptor socket) : socket_(std::move(socket)) {}

  /// Errors: Unavailable when the other side is gone, or does not read for a while.
  Status Send(const AgentMessage& message);

  /// The next message. Errors: Unavailable when the other side is gone or the deadline passes;
  /// DataLoss when it is none of ours.
  Result<AgentMessage> Receive(Deadline deadline);

  /// False when the other side has closed the connection, or its process has ended.
  [[nodiscard]] bool IsOpen() const;

  /// Makes all further calls fail, also those under way.
  void Close();

  [[nodiscard]] int fd() const { return socket_.get(); }

 private:
  FileDescriptor socket_;
  std::mutex sending_;
};

/// Connects to an agent that listens at `socket_path`, whatever runs there: the peer must be of the
/// same user. Errors: NotFound when nobody listens; FailedPrecondition.
Result<FileDescriptor> ConnectToSocket(const std::string& socket_path, Deadline deadline);

/// Errors: FailedPrecondition when the peer is neither of this user nor root.
Status CheckPeer(int socket, int* pid);

}  // namespace varve
