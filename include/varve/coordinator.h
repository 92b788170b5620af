/// The messages between the ranks of one job: small ones, each with a deadline.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "varve/status.h"

namespace varve {

class KnownParts;

/// A point in time after which a wait gives up.
using Deadline = std::chrono::steady_clock::time_point;

/// Carries byte strings between ranks. Rank 0 is the coordinator: it makes the global plan and
/// commits. Implementations supply point-to-point messages; the collective forms are built on them,
/// so that an error names a rank that does not answer by its number.
///
/// Threads: used by one thread at a time. All ranks must make the same collective calls in the
/// same order. After an error of the transport (kUnavailable) the object may be out of step with
/// its peers: Exchange takes no message on it from then on, and fails on all ranks.
class Coordinator {
 public:
  Coordinator();
  virtual ~Coordinator() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  /// Sends `message` to rank `to`. May return before it is received.
  virtual Status Send(int to, std::string_view message, Deadline deadline) = 0;

  /// Returns the next message from rank `from`. kUnavailable when the rank is lost or the deadline
  /// passes.
  virtual Result<std::string> Receive(int from, Deadline deadline) = 0;

  /// Until SendHeld, Send may keep messages back, so that equal ones for several ranks travel
  /// together. By default it keeps none.
  virtual void HoldSent() {}
  virtual void SendHeld(Deadline /*deadline*/) {}

  [[nodiscard]] bool is_coordinator() const { return rank() == 0; }

  /// Marks this rank as out of step with the others. Exchange does so where a message is lost.
  void MarkOutOfStep() { out_of_step_ = true; }
  [[nodiscard]] bool out_of_step() const { return out_of_step_; }

  /// Returns what earlier saves have told the ranks of each other's plans, so that it is not sent
  /// again: about 530 MiB at most. Rank 0 has the plans of all ranks, another rank its own. The
  /// engine uses it. It belongs to this object: a coordinator that is made anew for each save knows
  /// nothing.
  [[nodiscard]] KnownParts& known_parts() { return *known_parts_; }

 protected:
  /// Shares what another object for the same ranks knows.
  explicit Coordinator(std::shared_ptr<KnownParts> known) : known_parts_(std::move(known)) {}
  [[nodiscard]] static std::shared_ptr<KnownParts> KnownBy(const Coordinator& same_ranks) {
    return same_ranks.known_parts_;
  }

 private:
  bool out_of_step_ = false;
  std::shared_ptr<KnownParts> known_parts_;
};

/// One rank's part in an exchange: a payload, or the reason why it has none.
using Contribution = Result<std::string>;

/// Makes one exchange: every rank contributes; the coordinator's `combine` turns all contributions,
/// by rank, into one reply per rank; every rank returns its own reply.
///
/// If any rank contributes an error, cannot be reached in time, or `combine` fails, `combine` is
/// not called (or its result dropped) and *every* rank returns the same error, which names each
/// failing rank with its cause. `what` names the operation, for the message. When the coordinator
/// itself is lost the others return kUnavailable naming its rank. `coordinator_rank` is the rank
/// that combines, the same on all ranks.
Result<std::string> Exchange(
    Coordinator& coordinator, std::string_view what, Contribution mine, Deadline deadline,
    const std::function<Result<std::vector<std::string>>(std::vector<std::string>)>& combine,
    int coordinator_rank = 0);

/// Makes an Exchange without payload: all ranks return Ok, or all return the same error.
Status Agree(Coordinator& coordinator, std::string_view what, const Status& mine, Deadline deadline,
             int coordinator_rank = 0);

/// Returns every rank's payload, on every rank, by rank.
Result<std::vector<std::string>> Gather(Coordinator& coordinator, std::string_view what,
                                        std::string mine, Deadline deadline);

/// Returns a coordinator that sends by `ranks`, and is in step with its peers at first.
std::unique_ptr<Coordinator> MakeInStep(std::shared_ptr<Coordinator> ranks);

/// Returns the coordinator of a single process, without peers.
std::unique_ptr<Coordinator> MakeSingleProcessCoordinator();

/// A small table of texts that all ranks of a job can reach before they are connected, such as the
/// store of a launcher.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual Status Set(const std::string& key, const std::string& value) = 0;
  /// Returns the text that was set last; nothing where none was. Does not wait for one.
  virtual Result<std::optional<std::string>> Get(const std::string& key) = 0;
};

/// Returns a rendezvous by files in a directory that all ranks see. It has to exist.
std::unique_ptr<Rendezvous> MakeDirectoryRendezvous(std::string directory);

struct SocketOptions {
  int rank = 0;
  int size = 1;
  /// Under which rank 0 publishes its address. The same on all ranks, and another one for each
  /// coordinator of the job.
  std::string key = "varve-ranks";
  /// Time within which all ranks come.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// Receives lines for the log of a rank that waits long: for which ranks. May be empty.
  std::function<void(const std::string&)> log{};
};

/// Returns the ranks of a job as a Coordinator over TCP, for programs without MPI. Every rank
/// connects to rank 0; of more than 256 ranks most connect to every 32nd one, which passes their
/// messages on as long as its process lives. Only rank 0 exchanges messages
/// with others, as Exchange does; any other pair is kInternal. Call it on all ranks; it waits until
/// rank 0 can be reached. A rank that dies is noticed at once, a machine that vanishes after two
/// minutes, and a rank that does not come is named when the timeout is over.
///
/// Rank 0 listens on all interfaces, at a port of the system's choice; the other ranks try the
/// addresses of the interfaces that the environment variable GLOO_SOCKET_IFNAME names (separated by
/// commas), by default those on the ways to MASTER_ADDR and to other networks, and then those of
/// all interfaces. A token in the rendezvous keeps strangers out; messages are not encrypted.
///
/// Errors: Unavailable when rank 0 cannot be reached in time or the rendezvous fails;
/// FailedPrecondition when rank 0 runs another version of Varve.
Result<std::unique_ptr<Coordinator>> MakeSocketCoordinator(Rendezvous& rendezvous,
                                                           const SocketOptions& options);

/// Returns `size` coordinators joined inside this process, one per thread; for tests and
/// simulations. Destroying one makes its peers' waits fail at once, as the death of a process
/// would.
std::vector<std::unique_ptr<Coordinator>> MakeInProcessCoordinators(int size);

}  // namespace varve
