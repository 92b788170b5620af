/// A limit of bandwidth that the processes of a node share: the moment at which the next transfer
/// may begin is a number in shared memory, which each process moves on by the time that its own
/// transfer takes at that rate. A process that is killed leaves nothing but a moment that passes.
///
/// The memory is a file of the user. Containers that do not share /dev/shm have limits of their
/// own.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "base/time_source.h"
#include "storage/s3/traffic/node_slots.h"
#include "varve/status.h"

namespace varve::s3 {

/// Returns the file of this user's moment.
inline std::string NodePaceFile() { return NodeFile("bandwidth"); }

/// Threads: safe to call concurrently. A forked child goes on with its parent's memory.
class NodePace {
 public:
  /// `bytes_per_second` 0: there is no limit, and no file.
  NodePace(std::string file, std::uint64_t bytes_per_second);
  NodePace(const NodePace&) = delete;
  NodePace& operator=(const NodePace&) = delete;
  ~NodePace();

  [[nodiscard]] bool has_limit() const { return bytes_per_second_ > 0; }

  /// Returns when a transfer of `bytes` may begin: when the time of those before it has passed,
  /// whichever processes made them. A moment more than an hour ahead is not heard: it is from a
  /// clock before the last boot, where the file outlasted that. Errors: FailedPrecondition where
  /// the file cannot be used.
  Result<TimePoint> Reserve(std::uint64_t bytes, TimePoint now);

 private:
  Status Open();

  const std::string file_;
  const std::uint64_t bytes_per_second_;
  std::mutex mutex_;  // Guards next_start_, not what it points to.
  std::int64_t* next_start_ =
      nullptr;  // Of all processes: ns of the steady clock. Used atomically.
};

}  // namespace varve::s3
