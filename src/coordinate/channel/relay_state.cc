#include "coordinate/channel/relay_state.h"

#include <algorithm>

namespace varve {
namespace {

/// Time for which a frame waits for equal ones of other ranks.
constexpr auto kHold = std::chrono::milliseconds(1);
/// More than this does not wait.
constexpr std::size_t kMostHeld = std::size_t{64} << 10;

}  // namespace

void RelayState::Connected(int key, TimePoint now) {
  keys_.insert(key);
  if (key == kUp) {
    return;
  }
  down_.emplace_back(key, Frame{FrameKind::kHello, 0, rank_0_});  // It has reached rank 0.
  if (key < size_) {
    ways_[key] = key;
    GoesUp({{static_cast<std::uint64_t>(key), 1}}, {FrameKind::kHello, 0, {}}, now);
  }
}

void RelayState::Arrived(int key, Frame frame, TimePoint now) {
  if (key != kUp && key < size_) {
    GoesUp({{static_cast<std::uint64_t>(key), 1}}, std::move(frame), now);
    return;
  }
  if (frame.kind == FrameKind::kLost && key == kUp) {
    const auto report = DecodeFields<CallReport>(frame.payload);
    report.ok() ? End(report->text, static_cast<int>(report->rank) - 1) : End(kLostReason, -1);
    return;
  }
  Result<RoutedFrame> routed = frame.kind == FrameKind::kRouted
                                   ? DecodeFields<RoutedFrame>(frame.payload)
                                   : Internal("not of a relay");
  if (!routed.ok()) {
    return;
  }
  if (key == kUp) {
    GoesDown(std::move(*routed));
    return;
  }
  ForEachRank(routed->ranks, size_, [&](int rank) {
    if (routed->frame.kind == FrameKind::kHello) {
      ways_[rank] = key;
    } else if (routed->frame.kind == FrameKind::kLost) {
      ways_.erase(rank);
    }
  });
  GoesUp(routed->ranks, std::move(routed->frame), now);
}

void RelayState::GoesUp(const std::vector<RankRun>& ranks, Frame frame, TimePoint now) {
  const bool asks = frame.kind == FrameKind::kMessage;
  if (asks || frame.kind == FrameKind::kLost || frame.kind == FrameKind::kEnd) {
    ForEachRank(ranks, size_,
                [&](int rank) { asks ? (void)waiting_.insert(rank) : (void)waiting_.erase(rank); });
  }
  up_.Add(ranks, std::move(frame));
  const bool is_enough = up_.bytes() > kMostHeld || up_.last_ranks() >= ways_.size();
  due_ = is_enough ? now : std::min(due_, now + kHold);
}

void RelayState::GoesDown(RoutedFrame routed) {
  std::map<int, std::vector<RankRun>> behind;  // By connection.
  const FrameKind kind = routed.frame.kind;
  const bool answers = kind == FrameKind::kMessage || kind == FrameKind::kEnd;
  ForEachRank(routed.ranks, size_, [&](int rank) {
    if (answers) {
      waiting_.erase(rank);
    }
    if (const auto way = ways_.find(rank); way != ways_.end()) {
      AddRank(rank, &behind[way->second]);
    }
  });
  // The leader comes last: its process may end when it has the frame, and the relay with it.
  const auto add = [&](int key, std::vector<RankRun> ranks) {
    down_.emplace_back(key, key < size_
                                ? routed.frame
                                : Frame{FrameKind::kRouted, 0,
                                        EncodeFields(RoutedFrame{std::move(ranks), routed.frame})});
  };
  for (auto& [key, ranks] : behind) {
    if (key != leader_) {
      add(key, std::move(ranks));
    }
  }
  if (const auto own = behind.find(leader_); own != behind.end()) {
    add(leader_, std::move(own->second));
  }
}

void RelayState::Lost(int key, TimePoint now) {
  keys_.erase(key);
  if (key == kUp) {
    above_ == 0 ? End(kLostReason, -1) : End(LostWith(above_), above_);
    return;
  }
  std::vector<RankRun> others;
  const int below = key < size_ ? key : key - size_;
  for (auto way = ways_.begin(); way != ways_.end();) {
    if (way->second != key) {
      ++way;
      continue;
    }
    if (way->first != below) {
      AddRank(way->first, &others);
    }
    way = ways_.erase(way);
  }
  const auto lost = [&](const std::vector<RankRun>& ranks, const std::string& why, int cause) {
    GoesUp(ranks, {FrameKind::kLost, 0, EncodeFields(Ending(why, cause))}, now);
  };
  lost({{static_cast<std::uint64_t>(below), 1}}, kLostReason, -1);
  if (!others.empty()) {
    lost(others, LostWith(below), below);
  }
}

void RelayState::End(const std::string& why, int cause) {
  if (ended_) {
    return;
  }
  ended_ = true;
  for (const int key : keys_) {
    if (key != kUp) {
      down_.emplace_back(key, Frame{FrameKind::kLost, 0, EncodeFields(Ending(why, cause))});
    }
  }
}

std::vector<std::pair<int, Frame>> RelayState::TakeFrames(TimePoint now) {
  std::vector<std::pair<int, Frame>> frames = std::exchange(down_, {});
  if (now >= due_) {
    due_ = TimePoint::max();
    for (Frame& frame : up_.Take()) {
      frames.emplace_back(kUp, std::move(frame));
    }
  }
  return frames;
}

int RelayedRanks::WayTo(int rank) const {
  const auto way = ways_.find(rank);
  return way == ways_.end() ? rank : way->second;
}

void RelayedRanks::Arrived(int key, const Frame& frame, TimePoint now) {
  const Result<RoutedFrame> routed = frame.kind == FrameKind::kRouted
                                         ? DecodeFields<RoutedFrame>(frame.payload)
                                         : Internal("not of a relay");
  if (!routed.ok()) {
    return;
  }
  ForEachRank(routed->ranks, state_.size(), [&](int rank) {
    if (routed->frame.kind == FrameKind::kHello && rank > 0) {
      if (state_.IsConnected(rank) && !Has(rank)) {
        other_ways_[rank] = key;
        return;
      }
      state_.Lost(rank, kLostReason);
      ways_[rank] = key;
      state_.Connected(rank);
    } else if (const auto way = ways_.find(rank); way != ways_.end() && way->second == key) {
      state_.Arrived(rank, routed->frame, now);
      if (routed->frame.kind == FrameKind::kLost) {
        ways_.erase(way);
      }
    } else if (routed->frame.kind == FrameKind::kLost) {
      std::erase_if(other_ways_,
                    [&](const auto& other) { return other.first == rank && other.second == key; });
    }
  });
}

void RelayedRanks::DirectIsLost(int rank) {
  if (const auto other = other_ways_.extract(rank); !other.empty()) {
    ways_[rank] = other.mapped();
    state_.Connected(rank);
  }
}

void RelayedRanks::Lost(int key, const std::string& why) {
  merging_.erase(key);
  const int leader = key - state_.size();
  std::erase_if(other_ways_, [&](const auto& way) { return way.second == key; });
  std::vector<int> behind;
  for (const auto& [rank, way] : ways_) {
    if (way == key) {
      behind.push_back(rank);
    }
  }
  // The leader first: it is the cause.
  if (WayTo(leader) == key) {
    state_.Lost(leader, why);
  }
  for (const int rank : behind) {
    ways_.erase(rank);
    if (rank != leader) {
      state_.Lost(rank, LostWith(leader), leader);
    }
  }
}

void RelayedRanks::Add(int rank, Frame frame) {
  bytes_ += frame.payload.size();
  merging_[WayTo(rank)].Add({{static_cast<std::uint64_t>(rank), 1}}, std::move(frame));
}

std::vector<std::pair<int, Frame>> RelayedRanks::TakeFrames() {
  std::vector<std::pair<int, Frame>> frames;
  for (auto& [key, merging] : std::exchange(merging_, {})) {
    for (Frame& frame : merging.Take()) {
      frames.emplace_back(key, std::move(frame));
    }
  }
  bytes_ = 0;
  return frames;
}

}  // namespace varve
