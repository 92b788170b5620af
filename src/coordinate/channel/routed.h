/// Frames of many ranks on one connection: which rank passes on which, and how equal frames travel
/// as one. Deterministic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/fields.h"
#include "coordinate/channel/frames.h"

namespace varve {

/// The ranks as a tree. Rank 0 is the root. Every rank that is a multiple of the fan-out is a
/// leader: its process has a relay, which passes on the frames of the ranks from it up to the next
/// leader. Relays of leaders that are multiples of a higher power of the fan-out pass on those of
/// other relays.
struct RankTree {
  int fan_out = 0;  ///< 0: no rank leads, all connect to rank 0.

  [[nodiscard]] bool Leads(int rank) const {
    return fan_out > 0 && rank > 0 && rank % fan_out == 0;
  }
  /// Returns the leader whose relay this rank connects to; 0: it connects to rank 0.
  [[nodiscard]] int LeaderOf(int rank) const { return fan_out > 0 ? rank - rank % fan_out : 0; }
  /// Returns the leader whose relay the relay of `leader` connects to; 0: it connects to rank 0.
  [[nodiscard]] int AboveOf(int leader) const {
    std::int64_t step = fan_out;
    while (leader % step == 0) {
      step *= fan_out;
    }
    return static_cast<int>(leader - leader % step);
  }
};

/// Returns the fan-out for a number of ranks: that of the environment variable VARVE_FAN_OUT, else
/// 32 for more than 256 ranks, else 0. Errors: InvalidArgument where the variable has another value
/// than 0 and numbers from 2 on.
Result<int> FanOutFor(int size);

/// `count` ranks from `first` on.
struct RankRun {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, RankRun>& run) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 30U;
  archive(run.first, run.count);
  archive.Check([&] { return run.first < kMost && run.count <= kMost; }, "ranks out of range");
}

/// A frame of several ranks, each of which has sent it, or for several.
struct RoutedFrame {
  std::vector<RankRun> ranks;
  Frame frame;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, RoutedFrame>& routed) {
  archive(routed.ranks);
  archive.Enum(routed.frame.kind, FrameKind::kHello, FrameKind::kLost, "no kind of frame");
  archive(routed.frame.call, routed.frame.payload);
}

/// Calls `visit(rank)` for each rank below `size`, in order.
template <class Visit>
void ForEachRank(const std::vector<RankRun>& ranks, int size, const Visit& visit) {
  for (const RankRun& run : ranks) {
    for (std::uint64_t rank = run.first;
         rank < run.first + run.count && rank < static_cast<std::uint64_t>(size); ++rank) {
      visit(static_cast<int>(rank));
    }
  }
}

/// Adds one rank behind the others; the runs grow where it follows the last one.
void AddRank(int rank, std::vector<RankRun>* ranks);

/// Returns the reason of ranks that are lost because a relay is.
std::string LostWith(int leader);

/// Frames that wait for one connection. Equal frames of several ranks become one; the frames of one
/// rank keep their order.
class FrameMerger {
 public:
  void Add(const std::vector<RankRun>& ranks, Frame frame);
  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// The number of ranks that the last frame is of.
  [[nodiscard]] std::uint64_t last_ranks() const;
  /// Returns the frames, of kind kRouted, in order.
  std::vector<Frame> Take();

 private:
  std::deque<RoutedFrame> waiting_;
  std::size_t bytes_ = 0;
};

}  // namespace varve
