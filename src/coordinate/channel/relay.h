/// A relay: passes on the frames of other ranks, on a thread of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <sys/types.h>

#include "base/time_source.h"
#include "coordinate/channel/connection.h"
#include "varve/status.h"

namespace varve {

/// The relay of one channel in the process of a leader. It works while that rank is in no call, and
/// needs nothing of Python. Threads: any.
class Relay {
 public:
  /// Opens the listening socket of the relay of `leader`, of `size` ranks. Errors: Unavailable
  /// where the process has no descriptors.
  static Result<std::unique_ptr<Relay>> Make(int leader, int size);
  /// Ends it, as soon as the ranks behind it have what was sent to them: within seconds, and on the
  /// relay's thread.
  ~Relay();
  class Running;  ///< What the thread has; of relay.cc.

  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  /// Its address, as text for the other ranks.
  [[nodiscard]] const std::string& published() const { return published_; }
  /// Begins to pass on, by a connection to rank 0 or to the relay of `above`. `rank_0` is the address
  /// that rank 0 has published. Returns the leader's own connection to the relay. To be called once.
  Result<Socket> Start(Connection up, int above, const std::string& rank_0);
  /// Waits until the first `frames` frames of the leader have left for rank 0; returns false where
  /// they have not by then.
  bool Flush(std::uint64_t frames, TimePoint until);

 private:
  Relay(int leader, int size, Socket listener, const Address& address);

  const int leader_;
  const int size_;
  const pid_t process_;
  Socket listener_;
  const std::string token_;
  const std::string published_;
  std::shared_ptr<Running> running_;
};

}  // namespace varve
