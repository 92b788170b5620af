/// Messages between a trainer (or a command) and the agent of its node, with file descriptors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/file_descriptor.h"
#include "varve/agent.h"
#include "varve/coordinator.h"
#include "varve/status.h"

namespace varve {

/// The verbs, and who sends each: T is the trainer or a command, A the agent. kHello, kDrain,
/// kStop, kOk and kRefused are the same in all versions: so a command can end an agent of another
/// version.
enum class AgentVerb : std::uint8_t {
  kHello = 1,  ///< T: payload its version. A answers kOk with its own, or kRefused.
  kAttach,     ///< T: the staging memory, a memfd; payload its blocks and the first ticket. A: kOk.
  kSubmit,  ///< T: the save of a ticket, a memfd with a Submission, and the lease of its memory. A:
            ///< kOk or kRefused, same ticket.
  kPass,    ///< T: submits nothing for that ticket. No answer.
  kCancel,  ///< T: cancels the save of that ticket. No answer.
  kForget,  ///< T: needs the memory of that ticket. A: kForgotten.
  kFind,    ///< T: payload a path. A: a kHeld for each file of it in memory, then kOk.
  kStatus,  ///< T. A: kOk with an AgentReport, in a memfd.
  kDrain,   ///< T. A: kOk when nothing is left to write. No kHello is needed.
  kStop,    ///< T. A: kOk when nothing is left to write; it then ends. No kHello is needed.
  kOk,      ///< A.
  kRefused,  ///< A: payload a code and a message. With kNoTicket: why A closes the connection.
  kDone,  ///< A: the save of that ticket has ended. Payload as kRefused, or 0 and its report; or a
          ///< memfd with that.
  kForgotten,  ///< A.
  kHeld,  ///< A: memfds of the memory, a HeldFile, the page that is revoked when it is given up,
          ///< and the lease.
  kBye,   ///< T: leaves its memory to A for good, and closes. No answer.
};

/// The ticket of a kRefused that answers no message in particular.
inline constexpr std::uint64_t kNoTicket = ~std::uint64_t{0};

struct AgentMessage {
  AgentVerb verb = AgentVerb::kOk;
  std::uint64_t ticket = 0;
  Bytes payload;  ///< At most kMaxAgentPayload; what is longer goes in a memfd.
  std::vector<FileDescriptor> fds;
};

/// Returns the payload of kHello: Varve's version, and that of these messages. The latter is
/// counted up with every change of a message, for an agent may outlive the programs that started
/// it.
std::string AgentVersion();

inline constexpr std::size_t kMaxAgentPayload = 32768;
inline constexpr std::size_t kMaxAgentFds = 4;

/// Returns the status as a payload; a message that is too long is shortened.
Bytes EncodeRefusal(const Status& status);
/// Returns the status in a kRefused. Errors: DataLoss when the payload holds none.
Status DecodeRefusal(std::string_view payload);

Bytes EncodeAgentReport(const AgentReport& report);
/// Decodes a report. Errors: DataLoss.
Result<AgentReport> DecodeAgentReport(std::string_view bytes);

/// One side of a connection that keeps messages apart. Threads: one may receive while others send.
class AgentLink {
 public:
  virtual ~AgentLink() = default;
  /// Sends a message. Errors: Unavailable when the peer has closed the connection, or does not read
  /// for 10 s.
  virtual Status Send(const AgentMessage& message) = 0;
  /// Returns the next message. Errors: Unavailable when the peer has closed the connection or the
  /// deadline passes; DataLoss for a message that is malformed.
  virtual Result<AgentMessage> Receive(Deadline deadline) = 0;
  /// Returns false when the peer has closed the connection or has exited.
  [[nodiscard]] virtual bool IsOpen() const = 0;
  /// Makes all further calls fail, also those under way.
  virtual void Close() = 0;
};

}  // namespace varve
