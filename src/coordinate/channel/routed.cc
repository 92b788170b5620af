#include "coordinate/channel/routed.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace varve {
namespace {

constexpr int kFanOut = 32;
/// So many connections cost rank 0 little, and no rank depends on another one for its messages.
constexpr int kMostAtRank0 = 256;
/// Larger payloads are not compared: they are plans, which differ.
constexpr std::size_t kMostCompared = 4096;
/// Frames that are looked at for an equal one.
constexpr std::size_t kLookedAt = 4;

bool Meet(const std::vector<RankRun>& one, const std::vector<RankRun>& other) {
  return std::any_of(one.begin(), one.end(), [&](const RankRun& a) {
    return std::any_of(other.begin(), other.end(), [&](const RankRun& b) {
      return a.first < b.first + b.count && b.first < a.first + a.count;
    });
  });
}

bool AreEqual(const Frame& one, const Frame& other) {
  return one.kind == other.kind && one.call == other.call && one.payload == other.payload;
}

/// Puts runs in order and joins those that touch.
void Join(std::vector<RankRun>* ranks) {
  std::sort(ranks->begin(), ranks->end(),
            [](const RankRun& a, const RankRun& b) { return a.first < b.first; });
  std::vector<RankRun> joined;
  for (const RankRun& run : *ranks) {
    if (!joined.empty() && joined.back().first + joined.back().count == run.first) {
      joined.back().count += run.count;
    } else {
      joined.push_back(run);
    }
  }
  *ranks = std::move(joined);
}

}  // namespace

Result<int> FanOutFor(int size) {
  const char* const given = std::getenv("VARVE_FAN_OUT");
  if (given == nullptr || *given == '\0') {
    return size > kMostAtRank0 ? kFanOut : 0;
  }
  const std::string_view text(given);
  int fan_out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), fan_out);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  return is_number && (fan_out == 0 || fan_out >= 2)
             ? Result<int>(fan_out)
             : InvalidArgument("VARVE_FAN_OUT=" + std::string(text) +
                               ": want 0, or a number of ranks from 2 on");
}

void AddRank(int rank, std::vector<RankRun>* ranks) {
  const auto added = static_cast<std::uint64_t>(rank);
  if (!ranks->empty() && ranks->back().first + ranks->back().count == added) {
    ++ranks->back().count;
  } else {
    ranks->push_back({added, 1});
  }
}

std::string LostWith(int leader) {
  return "is lost with rank " + std::to_string(leader) + ", which passes its messages on";
}

void FrameMerger::Add(const std::vector<RankRun>& ranks, Frame frame) {
  if (frame.payload.size() <= kMostCompared) {
    auto waiting = waiting_.rbegin();
    for (std::size_t looked = 0; waiting != waiting_.rend() && looked < kLookedAt;
         ++waiting, ++looked) {
      if (AreEqual(waiting->frame, frame) && !Meet(waiting->ranks, ranks)) {
        for (const RankRun& run : ranks) {
          if (waiting->ranks.back().first + waiting->ranks.back().count == run.first) {
            waiting->ranks.back().count += run.count;
          } else {
            waiting->ranks.push_back(run);
          }
        }
        return;
      }
      if (Meet(waiting->ranks, ranks)) {
        break;  // The frame may not overtake that one.
      }
    }
  }
  bytes_ += frame.payload.size();
  waiting_.push_back({ranks, std::move(frame)});
}

std::uint64_t FrameMerger::last_ranks() const {
  std::uint64_t count = 0;
  if (!waiting_.empty()) {
    for (const RankRun& run : waiting_.back().ranks) {
      count += run.count;
    }
  }
  return count;
}

std::vector<Frame> FrameMerger::Take() {
  std::vector<Frame> frames;
  frames.reserve(waiting_.size());
  for (RoutedFrame& routed : waiting_) {
    Join(&routed.ranks);
    frames.push_back({FrameKind::kRouted, 0, EncodeFields(routed)});
  }
  waiting_.clear();
  bytes_ = 0;
  return frames;
}

}  // namespace varve
