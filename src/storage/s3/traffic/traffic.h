/// The limits of this process's requests: connections at once and bytes a second, of the process
/// and of the node. A request waits here before it begins, and holds a Permit while it is on its
/// way.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "base/pace.h"
#include "storage/s3/traffic/concurrency.h"
#include "storage/s3/traffic/node_pace.h"
#include "storage/s3/traffic/node_slots.h"
#include "varve/status.h"

namespace varve::s3 {

struct TrafficLimits {
  int connections = 64;                     ///< At once, of this process; >= 1.
  int node_connections = 0;                 ///< At once, of all processes of the node. 0: no limit.
  std::uint64_t bytes_per_second = 0;       ///< Up and down together, of this process. 0: no limit.
  std::uint64_t node_bytes_per_second = 0;  ///< Likewise, of all processes of the node.
  friend bool operator==(const TrafficLimits&, const TrafficLimits&) = default;
};

/// The requests that are on their way to one server, or of one process.
struct Load {
  ConcurrencyState state;
  int process = 0;  ///< That counts them: a forked child begins anew.
};

class Traffic;

/// One request on its way. The destructor ends it as ServerLoad::kUnknown.
class Permit {
 public:
  Permit(Permit&& other) noexcept;
  Permit(const Permit&) = delete;
  Permit& operator=(const Permit&) = delete;
  Permit& operator=(Permit&&) = delete;
  ~Permit();

  /// Ends the request. Returns the new limit where the server's answer has halved it.
  std::optional<int> End(ServerLoad load);

 private:
  friend class Traffic;
  Permit(Traffic* traffic, Load* server, std::uint64_t round, std::optional<int> slot)
      : traffic_(traffic), server_(server), round_(round), slot_(slot) {}

  Traffic* traffic_;  // Null: it has ended.
  Load* server_;
  std::uint64_t round_;
  std::optional<int> slot_;
};

/// Threads: safe to call concurrently. Outlives its permits. A forked child begins anew.
class Traffic {
 public:
  explicit Traffic(TrafficLimits limits, std::string slots_file = NodeSlotsFile(),
                   std::string pace_file = NodePaceFile());

  /// Waits until a request that moves `bytes` may begin. `server` is the load of the server that it
  /// goes to, from this process; this object guards it. Errors: Cancelled by the calling thread's
  /// CurrentStop; FailedPrecondition where the node's limit cannot be kept.
  Result<Permit> Begin(Load* server, std::uint64_t bytes);

 private:
  friend class Permit;
  Status WaitForTurn(std::uint64_t bytes);
  std::optional<int> End(Load* server, std::uint64_t round, std::optional<int> slot,
                         ServerLoad load);

  NodeSlots slots_;
  NodePace node_pace_;
  std::mutex mutex_;  // Guards all below and the servers' loads.
  std::condition_variable_any changed_;
  Load process_wide_;  // Its limit does not change.
  Pace pace_;
};

}  // namespace varve::s3
