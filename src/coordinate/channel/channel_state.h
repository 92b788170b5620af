/// One rank's end of a channel as a state machine: frames in, frames out, time limits and deaths.
/// Deterministic: no sockets, no clock, no threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/name_list.h"
#include "base/seconds.h"
#include "base/time_source.h"
#include "coordinate/channel/calls.h"
#include "coordinate/channel/frames.h"
#include "varve/coordinator.h"
#include "varve/status.h"

namespace varve {

class ChannelState {
 public:
  /// `first_notice` is the time after which a wait is logged; the intervals double from there.
  /// `one_call`: as ChannelOptions has it.
  ChannelState(int rank, int size, std::chrono::milliseconds first_notice, bool one_call = false);

  // ---- what this rank does ----

  /// Enters its next call. `what` is the same on all ranks; it is compared.
  void Begin(const std::string& what, double limit, TimePoint now);
  /// Counts a call that this rank made without reaching the others.
  void Skip(const std::string& what, const std::string& why);
  /// Leaves the call. With a reason, the ranks that still wait for this one receive it; `cause` is
  /// the rank that made this one leave, if another did.
  void End(const std::string& why, int cause);
  /// Sends a message. A rank that has not come gets it when it does.
  Status Send(int to, std::string message);
  /// Sends rank 0 how far this rank is.
  void SendNote(std::string note) {
    if (rank_ != 0 && in_call_) {
      Put(peers_.at(0), FrameKind::kNote, number_, {.text = std::move(note)});
    }
  }
  /// Tells the ranks that wait for this one in an earlier call that it has missed that.
  void TellPast(const std::string& name);

  /// Begins to wait for the next message of a rank.
  void Await(int source, double seconds, TimePoint now);
  /// Returns the message, or why none can come; or nothing, and when to ask again at the latest.
  std::optional<Result<std::string>> Poll(bool interrupted, TimePoint now, TimePoint* again);

  // ---- what happens ----

  void Connected(int rank);
  void Arrived(int rank, Frame frame, TimePoint now);
  /// `cause` is the rank that makes this one unreachable, if another does.
  void Lost(int rank, const std::string& why, int cause = -1);
  /// Rank 0 can take no further connection; empty: it can again.
  void SetRefused(std::string why) { refused_ = std::move(why); }

  // ---- what follows ----

  /// Returns the frames to send, in order, with their receivers.
  std::vector<std::pair<int, Frame>> TakeFrames() { return std::exchange(frames_, {}); }
  std::vector<std::string> TakeLines() { return std::exchange(lines_, {}); }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] const std::string& what() const { return what_; }
  [[nodiscard]] const std::string& refused() const { return refused_; }
  [[nodiscard]] bool IsConnected(int rank) const { return peers_.at(rank).connected; }
  /// The number of other ranks that are connected.
  [[nodiscard]] int connected() const {
    return static_cast<int>(std::count_if(peers_.begin(), peers_.end(),
                                          [](const auto& peer) { return peer.second.connected; }));
  }
  /// Why a rank is not connected.
  [[nodiscard]] std::string WhyNotConnected(int rank) const;
  /// The rank that made rank 0 leave this rank's call, where rank 0 has sent it; else -1.
  [[nodiscard]] int cause() const {
    return rank_ != 0 && peers_.at(0).left == number_ ? peers_.at(0).left_cause : -1;
  }

 private:
  /// Another rank, as far as this one knows it.
  struct Peer {
    int rank = 0;
    bool connected = false;
    std::string lost{};      ///< Why there is no connection, once there was one,
    int lost_cause = -1;     ///< and the rank that is the cause, if another is.
    std::uint64_t call = 0;  ///< This rank's newest call that it is known to be in, or was.
    Calls calls{};           ///< On rank 0: which of its calls are which.
    TimePoint deadline = TimePoint::max();     ///< Until when it waits for others to come.
    TimePoint comes_until = TimePoint::max();  ///< Until when one in another call is waited for.
    std::uint64_t left = 0;                    ///< The call that it has left,
    std::string left_why{};                    ///< why,
    int left_cause = -1;                       ///< and the rank that is the cause, if known.
    bool unclear = false;  ///< On rank 0: one of the two has missed a call, unknown which.
    std::string note{};    ///< How far it is; of rank 0, for whom it waits.
    std::string note_sent{};
    bool waits_for_absent = false;  ///< Of rank 0: it waits for a rank that has not come.
    std::deque<Frame> messages{};
    std::vector<std::string> unsent{};  ///< Messages to a rank that has not come yet.
  };
  /// The wait under way.
  struct Wait {
    int source = 0;
    TimePoint start{};
    TimePoint deadline{};
    TimePoint next_notice{};
    double seconds = 0;  ///< From start to deadline.
  };

  [[nodiscard]] Result<TimePoint> WaitsUntil(const Peer& peer, bool interrupted) const;
  [[nodiscard]] std::string WhyLate(const Peer& peer) const;
  [[nodiscard]] std::string WaitedFor() const;
  [[nodiscard]] bool IsWaitedFor(const Peer& peer) const;
  [[nodiscard]] bool SomeHaveNotCome() const;
  void LogWait(TimePoint now);
  void TellWhomWeWaitFor(TimePoint now);
  [[nodiscard]] std::uint64_t NumberOn(const Peer& peer) const {
    return rank_ == 0 ? peer.calls.joined() : number_;
  }
  void Put(const Peer& peer, FrameKind kind, std::uint64_t call, const CallReport& report);
  void ArrivedFrom0(Peer& peer, const Frame& frame, CallReport report, TimePoint now);
  void ArrivedOn0(Peer& peer, const Frame& frame, CallReport report, TimePoint now);
  void Settle(Peer& peer, TimePoint now, std::optional<int> vote = {});
  void Vote(TimePoint now);
  void Join(Peer& peer, const CallDecision& decision);
  void LeaveAsRank0Has(Peer& peer);
  void Fail(Peer& peer, std::string why, int cause);
  void Doom(int rank, const std::string& why);

  const int rank_;
  const int size_;
  const std::chrono::milliseconds first_notice_;
  const bool one_call_;
  std::map<int, Peer> peers_;
  std::uint64_t number_ = 0;  // Of the call that this rank is in, or was in last.
  std::string what_;          // That call's name.
  bool in_call_ = false;
  double limit_ = 0;
  TimePoint began_{};
  int waits_for_ = 0;                               // Rank 0 has messages of all ranks below.
  TimePoint others_wait_until_ = TimePoint::max();  // The first of the ranks in this call.
  TimePoint next_note_{};
  Wait wait_;
  std::string refused_;  // Why rank 0 can take no further connection.
  std::string doomed_;   // Why this call must fail,
  int doomed_by_ = -1;   // and the rank that is the cause.
  std::vector<LeftCall> untold_;
  CallsOfRank0 ended_;  // On the other ranks.
  // On rank 0: ranks by the calls that they, or rank 0 itself (true), have missed.
  std::map<std::pair<std::vector<std::string>, bool>, std::vector<int>> missed_;
  bool unclear_ = false;  // Some rank may have missed a call, or rank 0 may.
  std::vector<std::pair<int, Frame>> frames_;
  std::vector<std::string> lines_;
};

}  // namespace varve
