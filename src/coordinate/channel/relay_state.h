/// A relay as a state machine, and rank 0's side of relays: frames in, frames out, deaths.
/// Deterministic: no sockets, no clock, no threads. The account is in relay.cc.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/time_source.h"
#include "coordinate/channel/channel_state.h"
#include "coordinate/channel/frames.h"
#include "coordinate/channel/routed.h"

namespace varve {

class RelayState {
 public:
  /// The key of the connection to rank 0, or to the relay of `above`. A rank's is its number, that
  /// of another relay `size` + its leader: see KeyOfRelay.
  static constexpr int kUp = 0;

  /// `rank_0` is the address that rank 0 has published, for the ranks behind the relay.
  RelayState(int leader, int above, int size, std::string rank_0 = {})
      : leader_(leader), above_(above), size_(size), rank_0_(std::move(rank_0)) {}

  void Connected(int key, TimePoint now);
  void Arrived(int key, Frame frame, TimePoint now);
  void Lost(int key, TimePoint now);

  /// Returns the frames to send now, in order, with the keys of their connections.
  std::vector<std::pair<int, Frame>> TakeFrames(TimePoint now);
  /// Returns the time at which TakeFrames gives the frames that the relay keeps back.
  [[nodiscard]] TimePoint due() const { return due_; }
  /// Returns the bytes of these frames.
  [[nodiscard]] std::size_t held() const { return up_.bytes(); }
  /// Ranks behind it, but the leader, that have sent a message and wait for rank 0.
  [[nodiscard]] bool OthersWait() const {
    return waiting_.size() > (waiting_.contains(leader_) ? 1U : 0U);
  }
  /// Rank 0 cannot be reached any more.
  [[nodiscard]] bool has_ended() const { return ended_; }

 private:
  void GoesUp(const std::vector<RankRun>& ranks, Frame frame, TimePoint now);
  void GoesDown(RoutedFrame routed);
  void End(const std::string& why, int cause);

  const int leader_;
  const int above_;
  const int size_;
  const std::string rank_0_;
  std::map<int, int> ways_;  // Keys of connections, by the ranks that are behind them.
  std::set<int> keys_;       // Of all connections.
  std::set<int> waiting_;    // Ranks that wait for an answer of rank 0.
  FrameMerger up_;
  TimePoint due_ = TimePoint::max();
  std::vector<std::pair<int, Frame>> down_;
  bool ended_ = false;
};

/// On rank 0: the ranks that are behind relays, and what is to be sent to them.
class RelayedRanks {
 public:
  explicit RelayedRanks(ChannelState* state) : state_(*state) {}

  [[nodiscard]] bool Has(int rank) const { return ways_.contains(rank); }
  /// Returns the key of the connection by which a rank is reached.
  [[nodiscard]] int WayTo(int rank) const;
  /// A rank has connected to rank 0 itself. That connection counts: a relay that was late may still
  /// read the one that the rank has given up.
  void Forget(int rank) { ways_.erase(rank); }
  /// Such a connection has ended. The rank may have come by a relay before that was seen.
  void DirectIsLost(int rank);
  /// Takes a frame of a relay, which tells ChannelState of each rank that it is of.
  void Arrived(int key, const Frame& frame, TimePoint now);
  /// The ranks behind a relay are lost with its leader.
  void Lost(int key, const std::string& why);

  /// Keeps a frame for one of these ranks until TakeFrames.
  void Add(int rank, Frame frame);
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  std::vector<std::pair<int, Frame>> TakeFrames();

 private:
  ChannelState& state_;
  std::map<int, int> ways_;        // Keys of relays, by the ranks behind them.
  std::map<int, int> other_ways_;  // Likewise, of ranks that have a connection of their own.
  std::map<int, FrameMerger> merging_;
  std::size_t bytes_ = 0;
};

inline int KeyOfRelay(int leader, int size) { return size + leader; }

/// Returns the key of the connection that a hello is of; -1 where it is of no rank but 0.
inline int KeyOfHello(const CallReport& hello, int size) {
  const bool is_rank = hello.rank > 0 && hello.rank < static_cast<std::uint64_t>(size);
  return !is_rank      ? -1
         : hello.relay ? KeyOfRelay(static_cast<int>(hello.rank), size)
                       : static_cast<int>(hello.rank);
}

}  // namespace varve
