/// Ranks with a channel, over a network and a clock that a seed drives. Ranks may have relays.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "coordinate/channel/channel_state.h"
#include "coordinate/channel/relay_state.h"

namespace varve::simulated {

inline constexpr double kLimit = 60;
inline constexpr auto kEndOfConnection = FrameKind{0};

/// One rank's program: its calls, in each of which it sends rank 0 a message and waits for the
/// reply. Rank 0 waits for all messages and then replies to each.
struct Rank {
  std::unique_ptr<ChannelState> state;
  std::vector<std::string> calls;  // Still to make, the next one first.
  TimePoint busy_until{};          // Before the next call.
  int waits_for = -1;              // In a call; -1 outside.
  bool alive = true;
  std::vector<std::string> done{};                // Calls that were made with the others, in order.
  std::map<std::string, std::string> outcomes{};  // By call, the last; "done" or the error.
  std::map<std::string, double> took{};
  TimePoint began{};
  std::vector<std::string> received{};
};

class World {
 public:
  /// `fan_out` as RankTree has it.
  World(int size, unsigned seed, int fan_out = 0) : tree_{fan_out}, random_(seed) {
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back({std::make_unique<ChannelState>(rank, size, std::chrono::seconds(30)), {}});
      if (tree_.Leads(rank)) {
        relays_.emplace(KeyOfRelay(rank, size), RelayState(rank, tree_.AboveOf(rank), size));
      }
    }
    relayed_ = std::make_unique<RelayedRanks>(ranks[0].state.get());
    for (auto& [node, relay] : relays_) {
      relay.Connected(RelayState::kUp, now_);
      if (const int above = AboveOf(node); above != 0) {
        relays_.at(above).Connected(node, now_);
      }
    }
    for (int rank = 1; rank < size; ++rank) {
      At(rank).state->Connected(0);
      if (const int above = AboveOf(rank); above == 0) {
        ranks[0].state->Connected(rank);
      } else {
        relays_.at(above).Connected(rank, now_);
      }
    }
  }

  Rank& At(int rank) { return ranks[static_cast<std::size_t>(rank)]; }
  std::uint32_t Random(std::uint32_t below) {
    return static_cast<std::uint32_t>(random_() % below);
  }

  void Kill(int victim) {
    At(victim).alive = false;
    if (victim > 0) {
      EndLinkTo(AboveOf(victim), victim);
    }
    const int relay = KeyOfRelay(victim, static_cast<int>(ranks.size()));
    if (const auto found = relays_.find(relay); found != relays_.end()) {
      EndLinkTo(AboveOf(relay), relay);
    }
    for (int rank = 1; rank < static_cast<int>(ranks.size()); ++rank) {
      const int below = KeyOfRelay(rank, static_cast<int>(ranks.size()));
      for (const int end : {rank, below}) {
        if ((end == rank || relays_.contains(below)) &&
            (AboveOf(end) == relay || (victim == 0 && AboveOf(end) == 0))) {
          EndLinkTo(end, AboveOf(end));
        }
      }
    }
    relays_.erase(relay);
  }

  /// Runs until all living ranks have made their calls.
  void Run() {
    while (true) {
      TimePoint next = TimePoint::max();
      for (auto& [node, relay] : relays_) {
        if (relay.due() <= now_) {
          PostOf(node);
        }
        next = std::min(next, relay.due());
      }
      std::vector<std::pair<int, int>> ready;
      for (const auto& [ends, frames] : links_) {
        if (!frames.empty() && Reads(ends.second)) {
          ready.push_back(ends);
        }
      }
      std::vector<int> able;
      for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
        if (At(rank).alive && Go(rank, &next)) {
          able.push_back(rank);
        }
      }
      if (!ready.empty() && (able.empty() || Random(2) == 0)) {
        Deliver(ready[Random(static_cast<std::uint32_t>(ready.size()))]);
      } else if (able.empty()) {
        if (next == TimePoint::max()) {
          return;
        }
        now_ = std::max(now_, next);
      }
    }
  }

  std::vector<Rank> ranks;
  int frames_into_0 = 0;
  std::pair<int, std::string> interrupted{-1, {}};  // A rank by Ctrl-C, as soon as it is in a call.

 private:
  /// Lets a rank go on; returns true where it did, or else sets when it can at the latest.
  bool Go(int number, TimePoint* next) {
    Rank& rank = At(number);
    if (rank.waits_for < 0) {
      if (rank.calls.empty()) {
        return false;
      }
      if (rank.busy_until > now_) {
        *next = std::min(*next, rank.busy_until);
        return false;
      }
      rank.began = now_;
      rank.state->Begin(rank.calls.front(), kLimit, now_);
      if (interrupted == std::pair(number, rank.calls.front())) {
        interrupted.first = -1;  // Once.
        rank.waits_for = number;
        End(number, Unavailable(kInterruptedReason));
        Post(number);
        return true;
      }
      if (number != 0) {
        (void)rank.state->Send(0, rank.calls.front());
      }
      Await(rank, number == 0 ? 1 : 0);
      Post(number);
      return true;
    }
    TimePoint again{};
    const auto received = rank.state->Poll(false, now_, &again);
    Post(number);
    if (!received) {
      *next = std::min(*next, again);
      return false;
    }
    if (!received->ok()) {
      End(number, received->status());
    } else if (rank.received.push_back(**received);
               number != 0 || rank.waits_for + 1 == rank.state->size()) {
      for (int other = 1; number == 0 && other < rank.state->size(); ++other) {
        (void)rank.state->Send(other, rank.calls.front());
      }
      End(number, Status::Ok());
    } else {
      Await(rank, rank.waits_for + 1);
    }
    Post(number);
    return true;
  }

  void Await(Rank& rank, int source) {
    rank.waits_for = source;
    rank.state->Await(source, kLimit + (rank.state->rank() == 0 ? 0 : 10), now_);
  }

  void End(int number, const Status& status) {
    Rank& rank = At(number);
    const std::string call = rank.calls.front();
    const std::string error = "rank " + std::to_string(rank.waits_for) + ": " + status.message();
    if (status.ok()) {
      rank.done.push_back(call);
    }
    rank.outcomes[call] = status.ok() ? "done" : error;
    rank.took[call] = std::chrono::duration<double>(now_ - rank.began).count();
    rank.state->End(status.ok() ? "" : error, -1);
    rank.waits_for = -1;
    rank.calls.erase(rank.calls.begin());
    rank.busy_until = now_ + std::chrono::milliseconds(Random(3000));
  }

  /// Returns the node that a rank, or a relay by its key, is connected to.
  [[nodiscard]] int AboveOf(int node) const {
    const int size = static_cast<int>(ranks.size());
    const int leader = node < size ? tree_.LeaderOf(node) : tree_.AboveOf(node - size);
    return leader == 0 ? 0 : KeyOfRelay(leader, size);
  }

  void EndLinkTo(int to, int from) { links_[{from, to}].push_back({kEndOfConnection, 0, {}}); }

  /// A rank reads nothing between its calls; a relay always does.
  bool Reads(int node) {
    const bool is_rank = node < static_cast<int>(ranks.size());
    return is_rank ? At(node).alive && At(node).waits_for >= 0 : relays_.contains(node);
  }

  void Post(int from) {
    for (auto& [to, frame] : At(from).state->TakeFrames()) {
      if (from != 0) {
        links_[{from, AboveOf(from)}].push_back(std::move(frame));
      } else if (relayed_->Has(to)) {
        relayed_->Add(to, std::move(frame));
      } else {
        links_[{0, to}].push_back(std::move(frame));
      }
    }
    if (from == 0) {
      for (auto& [key, frame] : relayed_->TakeFrames()) {
        links_[{0, key}].push_back(std::move(frame));
      }
    }
  }

  void PostOf(int relay) {
    for (auto& [key, frame] : relays_.at(relay).TakeFrames(now_)) {
      const int to = key == RelayState::kUp ? AboveOf(relay) : key;
      links_[{relay, to}].push_back(std::move(frame));
    }
  }

  void Deliver(std::pair<int, int> ends) {
    auto& frames = links_[ends];
    Frame frame = std::move(frames.front());
    frames.pop_front();
    const auto [from, to] = ends;
    const int size = static_cast<int>(ranks.size());
    const bool is_end = frame.kind == kEndOfConnection;
    frames_into_0 += to == 0 ? 1 : 0;
    if (to >= size) {
      RelayState& relay = relays_.at(to);
      const int key = from == AboveOf(to) ? RelayState::kUp : from;
      is_end ? relay.Lost(key, now_) : relay.Arrived(key, std::move(frame), now_);
      PostOf(to);
      return;
    }
    ChannelState& state = *At(to).state;
    if (to == 0 && from >= size) {
      is_end ? relayed_->Lost(from, kLostReason) : relayed_->Arrived(from, frame, now_);
    } else if (is_end) {
      state.Lost(to == 0 ? from : 0, from >= size ? LostWith(from - size) : kLostReason);
    } else {
      state.Arrived(to == 0 ? from : 0, std::move(frame), now_);
    }
    Post(to);
  }

  const RankTree tree_;
  std::map<int, RelayState> relays_;  // By key.
  std::unique_ptr<RelayedRanks> relayed_;
  std::mt19937 random_;
  TimePoint now_{};
  std::map<std::pair<int, int>, std::deque<Frame>> links_;
};

}  // namespace varve::simulated
