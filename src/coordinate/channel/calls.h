/// Which call of rank 0 is which call of another rank. Deterministic: no sockets, no clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace varve {

/// What follows from what rank 0 knows of its own calls and another rank's.
struct CallDecision {
  enum class Kind : std::uint8_t {
    kWait,            ///< Nothing follows yet.
    kJoined,          ///< The two ranks are in one call, now.
    kRank0Fails,      ///< Rank 0's call fails.
    kOtherRankFails,  ///< The other rank's call `number` fails.
    kUnclear,         ///< One of the two calls fails; a vote of all ranks decides which.
  };
  Kind kind = Kind::kWait;
  std::string why;           ///< Why a call fails; its subject is the rank on the other side.
  std::uint64_t number = 0;  ///< The other rank's number of the call that is joined or fails.
  int cause = -1;            ///< The rank that is the cause, if it is a third one.
  std::vector<std::string> missed_by_other{};  ///< Of kJoined: calls that rank 0 alone has made.
  std::vector<std::string> missed_by_0{};      ///< Of kJoined: calls that the other alone has made.
  bool other_waits = false;  ///< The rank whose call does not fail waits for the other's next one.
};

/// The calls of rank 0 and of one other rank; the account is in calls.cc.
class Calls {
 public:
  /// A call that one of the two has left, or is in.
  struct Made {
    std::string name;
    std::uint64_t number = 0;  ///< The other rank's, for its own calls.
    std::string why;           ///< Why it was left.
    int cause = -1;            ///< The rank that was the cause, where that is known.
  };

  /// Rank 0 enters a call, or leaves it for a reason.
  void Begin(std::string name);
  void End(std::string why, int cause = -1);
  /// The other rank enters a call, or leaves it for a reason. A call that came before is ignored.
  void Comes(std::uint64_t number, std::string name);
  void Leaves(std::uint64_t number, const std::string& why);
  /// The other rank makes no call before the one of this name, by the numbers of the names.
  void OtherIsPast(std::string name) { past_ = std::move(name); }

  /// Returns what follows. To be called after each event, until it returns kWait or kUnclear.
  /// `vote` is that of all ranks on what is unclear: -1 fails rank 0's call, 1 the other's, 0 is a
  /// tie.
  CallDecision Decide(std::optional<int> vote = {});
  /// Returns what follows from rank 0 being in no call, and past what comes before one of a name.
  CallDecision Rank0IsPast(const std::string& name);

  /// The other rank's number of rank 0's present call; 0 until they are in it together.
  [[nodiscard]] std::uint64_t joined() const { return joined_; }
  /// Returns true while rank 0 is in a call that has neither been joined nor is known to fail.
  [[nodiscard]] bool is_undecided() const { return name_ && joined_ == 0 && !known_to_fail_; }
  /// The other rank's newest call, while it waits there for rank 0.
  [[nodiscard]] const std::optional<Made>& open() const { return open_; }

 private:
  void OtherLeft(std::string why);
  CallDecision Join();
  CallDecision OtherIsLate(std::size_t place);
  CallDecision Rank0IsLate(std::size_t place);
  CallDecision Rank0Missed(std::string why);
  CallDecision OneHasMissed(std::optional<int> vote);

  std::uint64_t joined_ = 0;
  std::uint64_t newest_ = 0;  // Of the other rank's numbers.
  std::optional<Made> open_;
  std::string past_;
  std::optional<std::string> name_;  // Rank 0's present call.
  bool known_to_fail_ = false;       // Rank 0's present call, which need not be joined then.
  int wrong_ = 0;                    // The vote that did not help.
  std::deque<Made> mine_;
  std::deque<Made> theirs_;
};

/// On another rank: the calls that rank 0 has left without it. Rank 0 says so at once: it may be in
/// no call, and answer nothing, when this rank comes. Deterministic.
///
/// This rank decides alone only what rank 0 would decide too, whatever call that is in. It is so
/// while this rank has left no call without rank 0 since the two were in one: Calls then fails it
/// in each call of the name of one that rank 0 has left. Else it waits for rank 0.
class CallsOfRank0 {
 public:
  /// Rank 0 has left a call.
  void Left(Calls::Made call);
  /// This rank has left a call in which rank 0 was not with it.
  void LeftAlone();
  /// The two are in a call together: what came before is settled.
  void Joined();
  /// Returns the call of this name that rank 0 has left, which this rank enters now. Forgets it and
  /// those before it, as rank 0 does.
  std::optional<Calls::Made> Take(const std::string& name);

 private:
  std::deque<Calls::Made> left_;
  bool alone_ = false;  // This rank has left a call without rank 0, which rank 0 had not left.
  bool taken_ = false;  // This rank is in a call that Take has returned.
};

/// Returns why a rank fails that comes to a call which rank 0 has left for a reason.
std::string EndedWithoutThisRank(const std::string& why);

/// Compares names that differ in numbers alone: -1 where `mine` comes first, 0 for other names.
int OrderOfCalls(std::string_view mine, std::string_view theirs);

}  // namespace varve
