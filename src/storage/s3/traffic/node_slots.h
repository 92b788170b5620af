/// A limit of connections that the processes of a node share: each connection holds one of so many
/// slots, and each slot is a byte of a file in shared memory that is locked. The kernel gives the
/// locks of a process back when it ends, however it ends.
///
/// The file is that of the user. Containers that do not share /dev/shm have limits of their own.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "varve/status.h"

namespace varve::s3 {

/// Returns the name of a file of this user that all processes of the node see: `what` says its use.
std::string NodeFile(std::string_view what);

/// Returns the file of this user's slots.
inline std::string NodeSlotsFile() { return NodeFile("connections"); }

/// Threads: safe to call concurrently.
class NodeSlots {
 public:
  /// `count` slots of `file`, which is made where it is not there. 0: there is no limit.
  NodeSlots(std::string file, int count);
  NodeSlots(const NodeSlots&) = delete;
  NodeSlots& operator=(const NodeSlots&) = delete;
  ~NodeSlots();

  [[nodiscard]] bool has_limit() const { return !taken_.empty(); }

  /// Takes a slot; nothing where all are taken. Errors: FailedPrecondition where the file cannot be
  /// opened or locked.
  Result<std::optional<int>> TryTake();
  void GiveBack(int slot);

 private:
  Status Open();

  const std::string file_;
  std::mutex mutex_;  // Guards all below.
  std::vector<bool> taken_;
  std::size_t next_ = 0;  // Where TryTake begins.
  int descriptor_ = -1;
  int process_ = 0;  // That opened it: a child's copy would hold the parent's locks.
};

}  // namespace varve::s3
