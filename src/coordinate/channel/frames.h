/// What ranks send each other over a channel. Deterministic.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "base/fields.h"
#include "base/seconds.h"
#include "base/time_source.h"

namespace varve {

enum class FrameKind : std::uint8_t {
  kHello = 1,    ///< The first frame of a connection: which rank connects, and the channel's token.
  kCall = 2,     ///< The sender begins a call: its name and time limit. Of rank 0: it is there.
  kMessage = 3,  ///< A message of the engine.
  kNote = 4,     ///< Text for the log of a rank that waits.
  kEnd = 5,      ///< The sender has left the call, or the receiver must: why.
  kPast = 6,     ///< The sender is in no call, and makes none before the one of this name.
  kEnded = 7,    ///< Of rank 0: it has left a call, `missed`, to which the receiver has not come.
  kLost = 8,     ///< Of a relay: a rank is lost, or rank 0 is: why.
  kRouted = 9,   ///< A frame of several ranks, or for them: routed.h.
};
inline constexpr FrameKind kLastFrameKind = FrameKind::kRouted;

struct Frame {
  FrameKind kind = FrameKind::kMessage;
  std::uint64_t call = 0;  ///< The number that the call has on the rank that is not rank 0.
  std::string payload;
};

/// The reason of a rank that leaves a call by Ctrl-C.
inline constexpr const char* kInterruptedReason = "was interrupted (Ctrl-C)";
/// The reason of a connection that is closed.
inline constexpr const char* kLostReason = "is lost (its connection is closed)";

/// Returns the log's line about a rank that waits `for_whom` in a call, since `begun`; `limit` in
/// seconds.
inline std::string WaitLine(const std::string& call, std::uint64_t rank, TimePoint begun,
                            TimePoint now, const std::string& for_whom, double limit) {
  const auto waited = std::chrono::round<std::chrono::seconds>(now - begun).count();
  return call + ": rank " + std::to_string(rank) + " has waited " + std::to_string(waited) +
         " s for " + for_whom + "; the time limit is " + InSeconds(limit);
}

/// A call that a rank made without reaching rank 0.
struct LeftCall {
  std::uint64_t number = 0;
  std::string name;
  std::string why;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, LeftCall>& call) {
  archive(call.number, call.name, call.why);
}

/// The payload of all frames but kMessage; each kind has some of the fields.
struct CallReport {
  std::string text{};  ///< The name of a call, a token, a note, or why a call has ended.
  std::uint64_t rank =
      0;             ///< That connects. Where a call ends: the rank that is the cause, plus 1.
  double limit = 0;  ///< Seconds for which the rank waits for others. Of kNote: for which the
                     ///< receiver waits at most, in another call than rank 0's; 0 for no such one.
  bool waits_for_absent = false;      ///< Of kNote: the sender waits for a rank that has not come.
  std::vector<std::string> missed{};  ///< Calls that the receiver has not made.
  std::vector<LeftCall> left{};
  bool relay = false;  ///< Of kHello: the relay of `rank` connects, not the rank.
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, CallReport>& report) {
  archive(report.text, report.rank, report.limit, report.waits_for_absent, report.missed,
          report.left, report.relay);
}

/// Returns the report of a rank that leaves a call; `cause` is the rank that made it leave, or -1.
inline CallReport Ending(const std::string& why, int cause, std::vector<std::string> missed = {}) {
  return {.text = why, .rank = static_cast<std::uint64_t>(cause + 1), .missed = std::move(missed)};
}

/// Drops messages of calls before the one of a number.
inline void DropBefore(std::deque<Frame>* messages, std::uint64_t number) {
  while (!messages->empty() && messages->front().call < number) {
    messages->pop_front();
  }
}

}  // namespace varve
