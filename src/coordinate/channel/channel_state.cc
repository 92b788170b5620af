// The channel of a set of ranks: messages between rank 0 and every other rank. Varve's own, because
// a collective of the training must not wait behind a checkpoint, because a wait has to name the
// ranks that it waits for, and because the time limit of one rank must not cost the connections of
// the others, as it does in gloo.
//
// A save or load is one call. Its steps (this file decides, channel.cc has the connections):
//  1. Every rank numbers its calls on the channel, from 1 on, when it enters one and before
//     anything can fail. The number and the name go with the call.
//  2. Rank 0 opens a listening socket with its first call, puts its address and a token into the
//     job's store under a key that follows from the ranks alone, and waits for no rank.
//  3. Every other rank reads that key and connects: to rank 0, or to the relay of another rank, if
//     there are many (relay.cc). Frames come and go as by one connection a rank. A rank that is
//     refused reads the key again until its time is up: it may have read an older world's. Where it
//     was connected to that very address before, rank 0 has ended: some seconds are enough. An
//     address that another version of Varve wrote is an error at once.
//  4. A rank sends kCall with the call's number, its name and the seconds that it will wait, and
//     the calls before it in which it did not reach rank 0. Rank 0 finds out which call of its own
//     that is (calls.cc) and answers with kCall when it is in that one. All frames between the two
//     bear the other rank's number; rank 0 keeps messages until they are in a call together, in
//     both directions.
//  5. A rank that comes late, to a call that rank 0 has ended, gets an error at once and fails that
//     call alone; the next one finds all ranks in step. Rank 0 reads nothing between its calls:
//     when it ends one it tells the connected ranks that have not come. A rank that has missed a
//     call waits in its present one while rank 0 ends the missed one on all ranks, with the names
//     of both; then rank 0 comes, or the rank fails after a minute. If rank 0 has missed one, the
//     ranks in it get an error at once.
//  6. Rank 0 reads from all ranks at once. Where a rank has not called, rank 0 gives up at the
//     earliest time limit of the ranks that have: so each of them learns within its own time limit
//     which rank is missing.
//  7. A rank that fails outside an exchange, or is interrupted, sends kEnd with the reason. A rank
//     that dies closes its connection. A rank that waits sees either at once.
//  8. A receive that times out leaves the connection. Numbers tell the messages of calls apart.
//  9. A rank that waits logs for which ranks, after half a minute and at doubling intervals. Rank 0
//     sends the others the ranks that it waits for; ranks that write send rank 0 how far they are.
// 10. The channel of a background is made in a call of this one. No rank leaves that call before
//     rank 0 has accepted all connections: if rank 0 closed its end, the others would be refused.

#include "coordinate/channel/channel_state.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>

#include "base/seconds.h"

namespace varve {
namespace {

constexpr double kReconnectGrace = 3.0;  ///< Seconds to connect again, at the start of a call.
/// Seconds for which a rank is waited for after its call has failed for being another one.
constexpr double kAfterAnotherCall = 60.0;
/// Time between two notes of rank 0 to the ranks that wait for it.
constexpr auto kNoteInterval = std::chrono::seconds(5);
constexpr std::size_t kUntoldKept = 64;  ///< Calls without rank 0, to be sent with the next one.

constexpr const char* kAllHaveToCall = "every rank of the process group has to make this call";

Status NotWaitedFor(const std::string& why, int cause) {
  return Unavailable("was not waited for: " + why).With({.rank = cause});
}

}  // namespace

ChannelState::ChannelState(int rank, int size, std::chrono::milliseconds first_notice,
                           bool one_call)
    : rank_(rank), size_(size), first_notice_(first_notice), one_call_(one_call) {
  for (int other = rank == 0 ? 1 : 0; other < (rank == 0 ? size : 1); ++other) {
    peers_[other].rank = other;
  }
}

void ChannelState::Begin(const std::string& what, double limit, TimePoint now) {
  ++number_;
  what_ = what;
  in_call_ = true;
  limit_ = limit;
  began_ = now;
  doomed_.clear();
  doomed_by_ = -1;
  others_wait_until_ = TimePoint::max();
  next_note_ = now + kNoteInterval;
  waits_for_ = 0;
  missed_.clear();
  for (auto& [rank, peer] : peers_) {
    peer.note.clear();
    peer.note_sent.clear();
    peer.waits_for_absent = false;
    peer.comes_until = TimePoint::max();
    if (rank_ == 0) {
      peer.unsent.clear();
      peer.calls.Begin(what);
      Settle(peer, now);
      continue;
    }
    DropBefore(&peer.messages, number_);
    Put(peer, FrameKind::kCall, number_, {.text = what, .limit = limit, .left = untold_});
    LeaveAsRank0Has(peer);
  }
}

void ChannelState::Skip(const std::string& what, const std::string& why) {
  ++number_;
  untold_.push_back({number_, what, why});
  ended_.LeftAlone();
  if (untold_.size() > kUntoldKept) {
    untold_.erase(untold_.begin());
  }
  if (rank_ == 0) {
    for (auto& [rank, peer] : peers_) {
      peer.calls.Begin(what);
      peer.calls.End(why);
    }
  }
}

void ChannelState::End(const std::string& why, int cause) {
  if (!in_call_) {
    return;
  }
  in_call_ = false;
  const std::string reason = rank_ == 0 && why == kInterruptedReason ? "rank 0 " + why : why;
  for (auto& [rank, peer] : peers_) {
    if (const std::uint64_t number = NumberOn(peer); !why.empty() && number != 0) {
      Put(peer, FrameKind::kEnd, number, Ending(why, cause));
    } else if (!why.empty() && peer.calls.is_undecided()) {
      Put(peer, FrameKind::kEnded, 0, Ending(reason, cause, {what_}));
    }
    peer.unsent.clear();
    if (rank_ == 0) {
      peer.calls.End(reason, cause);
    } else if (peer.call != number_) {
      ended_.LeftAlone();
    }
  }
  for (const auto& [calls, ranks] : missed_) {
    const std::string others = NameRanks(ranks);
    lines_.push_back(what_ + ": " + (calls.second ? "rank 0" : others) + " missed " +
                     NameSome(calls.first) + ", which " + (calls.second ? others : "rank 0") +
                     " made");
  }
}

Status ChannelState::Send(int to, std::string message) {
  Peer& peer = peers_.at(to);
  if (!peer.connected) {
    return Unavailable(WhyNotConnected(to));
  }
  if (rank_ == 0 && peer.calls.joined() == 0) {
    peer.unsent.push_back(std::move(message));
  } else {
    frames_.emplace_back(to, Frame{FrameKind::kMessage, NumberOn(peer), std::move(message)});
  }
  return Status::Ok();
}

void ChannelState::TellPast(const std::string& name) {
  for (auto& [rank, peer] : peers_) {
    if (rank_ != 0) {
      Put(peer, FrameKind::kPast, number_, {.text = name});
      continue;
    }
    const CallDecision decision = peer.calls.Rank0IsPast(name);
    if (decision.kind == CallDecision::Kind::kOtherRankFails) {
      Put(peer, FrameKind::kEnd, decision.number, Ending(decision.why, decision.cause));
    }
  }
}

void ChannelState::Await(int source, double seconds, TimePoint now) {
  waits_for_ = source;
  wait_ = {source, now, After(now, seconds), now + first_notice_, seconds};
}

std::optional<Result<std::string>> ChannelState::Poll(bool interrupted, TimePoint now,
                                                      TimePoint* again) {
  Peer& peer = peers_.at(wait_.source);
  const std::uint64_t number = NumberOn(peer);
  if (number != 0 && !peer.messages.empty() && peer.messages.front().call == number) {
    std::string message = std::move(peer.messages.front().payload);
    peer.messages.pop_front();
    return message;
  }
  const Result<TimePoint> until = WaitsUntil(peer, interrupted);
  if (!until.ok()) {
    return until.status();
  }
  if (now >= *until) {
    return Unavailable(WhyLate(peer)).With({.rank = peer.lost_cause, .system_error = ETIMEDOUT});
  }
  if (now >= wait_.next_notice) {
    LogWait(now);
    wait_.next_notice = now + (now - wait_.start);
  }
  TellWhomWeWaitFor(now);
  *again = std::min({*until, wait_.next_notice, now + kNoteInterval});
  return {};
}

/// Returns until when a message of `peer` may come, or why none can.
Result<TimePoint> ChannelState::WaitsUntil(const Peer& peer, bool interrupted) const {
  if (interrupted) {
    return NotWaitedFor("rank " + std::to_string(rank_) + " " + kInterruptedReason, rank_);
  }
  if (peer.left == number_) {
    return Unavailable(peer.left_why).With({.rank = peer.left_cause});
  }
  if (peer.call == number_ && peer.calls.open()) {
    return Unavailable("has left this call and begun another one");
  }
  if (!doomed_.empty() && peer.rank != doomed_by_) {
    return NotWaitedFor(doomed_, doomed_by_);
  }
  TimePoint until = wait_.deadline;
  if (!peer.connected && !(peer.lost.empty() && refused_.empty())) {
    // It may be about to connect again, unless it was lost in this call.
    if (rank_ != 0 || peer.call == number_ || !refused_.empty()) {
      return Unavailable(refused_.empty() ? peer.lost : refused_).With({.rank = peer.lost_cause});
    }
    until = std::min(until, After(began_, kReconnectGrace));
  }
  if (peer.call < number_ && !one_call_) {
    until = std::min({until, After(began_, limit_), others_wait_until_, peer.comes_until});
  }
  return until;
}

std::string ChannelState::WhyLate(const Peer& peer) const {
  if (peer.call == number_) {
    return "no answer before the deadline of " + InSeconds(std::round(wait_.seconds * 10) / 10) +
           (peer.note.empty() ? "" : "; " + peer.note);
  }
  if (rank_ == 0 && peer.calls.open()) {
    return "calls " + peer.calls.open()->name + "; " + kAllHaveToCall;
  }
  if (peer.comes_until != TimePoint::max()) {
    return std::string("has made another call, and not come since; ") + kAllHaveToCall;
  }
  return !peer.lost.empty()
             ? peer.lost
             : "did not come before the deadline of " + InSeconds(limit_) + "; " + kAllHaveToCall;
}

std::string ChannelState::WhyNotConnected(int rank) const {
  const Peer& peer = peers_.at(rank);
  return !refused_.empty() ? refused_ : peer.lost.empty() ? kLostReason : peer.lost;
}

/// Names the ranks that this one waits for, and how far each is.
std::string ChannelState::WaitedFor() const {
  if (rank_ != 0) {
    const std::string& note = peers_.at(0).note;
    return note.empty() ? "rank 0" : note;
  }
  std::map<std::string, std::vector<int>> groups;
  for (const auto& [rank, peer] : peers_) {
    if (IsWaitedFor(peer)) {
      const std::string working = peer.note.empty() ? "still working" : peer.note;
      groups[peer.call == number_ ? working : "not there yet"].push_back(rank);
    }
  }
  std::string text;
  for (const auto& [state, ranks] : groups) {
    text += (text.empty() ? "" : ", ") + NameRanks(ranks) + " (" + state + ")";
  }
  return text;
}

/// On rank 0: returns true for a rank whose message of this call has not arrived.
bool ChannelState::IsWaitedFor(const Peer& peer) const {
  return peer.rank >= waits_for_ &&
         std::none_of(peer.messages.begin(), peer.messages.end(),
                      [&](const Frame& frame) { return frame.call == peer.calls.joined(); });
}

/// Returns true when rank 0 is known to wait for a rank that is not in this call.
bool ChannelState::SomeHaveNotCome() const {
  if (rank_ != 0) {
    return peers_.at(0).waits_for_absent;
  }
  return std::any_of(peers_.begin(), peers_.end(), [&](const auto& known) {
    return known.second.call != number_ && IsWaitedFor(known.second);
  });
}

void ChannelState::LogWait(TimePoint now) {
  const double limit = one_call_ ? std::round(wait_.seconds) : limit_;
  lines_.push_back(
      WaitLine(what_, static_cast<std::uint64_t>(rank_), wait_.start, now, WaitedFor(), limit) +
      (SomeHaveNotCome() ? std::string("; ") + kAllHaveToCall : ""));
}

/// Sends the ranks that wait for rank 0 a note that names those that it waits for.
void ChannelState::TellWhomWeWaitFor(TimePoint now) {
  if (rank_ != 0 || now < next_note_) {
    return;
  }
  next_note_ = now + kNoteInterval;
  const CallReport note{.text = "rank 0, which waits for " + WaitedFor(),
                        .waits_for_absent = SomeHaveNotCome()};
  for (auto& [rank, peer] : peers_) {
    if (peer.call == number_ && peer.note_sent != note.text) {
      peer.note_sent = note.text;
      Put(peer, FrameKind::kNote, NumberOn(peer), note);
    }
  }
}

void ChannelState::Put(const Peer& peer, FrameKind kind, std::uint64_t call,
                       const CallReport& report) {
  if (peer.connected) {
    frames_.emplace_back(peer.rank, Frame{kind, call, EncodeFields(report)});
  }
}

void ChannelState::Connected(int rank) {
  Peer& peer = peers_.at(rank);
  peer.connected = true;
  peer.lost.clear();
  peer.lost_cause = -1;
}

void ChannelState::Lost(int rank, const std::string& why, int cause) {
  Peer& peer = peers_.at(rank);
  if (!peer.connected) {
    return;
  }
  peer.connected = false;
  peer.lost = why;
  peer.lost_cause = cause;
  if (in_call_ && peer.call == number_) {
    cause < 0 ? Doom(rank, why) : Doom(cause, kLostReason);
  }
}

/// Rank 0 need not wait for further ranks once one has left: the call fails.
void ChannelState::Doom(int rank, const std::string& why) {
  if (rank_ == 0 && doomed_.empty()) {
    doomed_ = "rank " + std::to_string(rank) + " " + why;
    doomed_by_ = rank;
  }
}

void ChannelState::Arrived(int rank, Frame frame, TimePoint now) {
  Peer& peer = peers_.at(rank);
  if (frame.kind == FrameKind::kMessage) {
    const Calls& calls = peer.calls;
    if (rank_ != 0 ? frame.call >= number_
                   : frame.call == calls.joined() ||
                         (calls.open() && frame.call == calls.open()->number)) {
      peer.messages.push_back(std::move(frame));
    }
    return;
  }
  Result<CallReport> report = DecodeFields<CallReport>(frame.payload);
  if (report.ok() && frame.kind == FrameKind::kLost) {
    Lost(rank, report->text, static_cast<int>(report->rank) - 1);
  } else if (report.ok() && rank_ == 0) {
    ArrivedOn0(peer, frame, std::move(*report), now);
  } else if (report.ok() && frame.kind == FrameKind::kEnded) {
    for (std::string& name : report->missed) {
      ended_.Left({std::move(name), 0, report->text, static_cast<int>(report->rank) - 1});
    }
    LeaveAsRank0Has(peer);
  } else if (report.ok() && frame.call >= number_) {
    ArrivedFrom0(peer, frame, std::move(*report), now);
  }
}

void ChannelState::ArrivedFrom0(Peer& peer, const Frame& frame, CallReport report, TimePoint now) {
  untold_.clear();  // Rank 0 has taken them in with this call.
  if (frame.kind == FrameKind::kNote) {
    peer.waits_for_absent = report.waits_for_absent;
    peer.comes_until = report.limit > 0 ? After(now, report.limit) : peer.comes_until;
    peer.note = std::move(report.text);
  } else if (frame.kind == FrameKind::kEnd) {
    peer.left = frame.call;
    peer.left_why = std::move(report.text);
    peer.left_cause = static_cast<int>(report.rank) - 1;
  } else if (frame.kind == FrameKind::kCall) {
    peer.call = frame.call;
    ended_.Joined();
    if (!report.missed.empty()) {
      lines_.push_back(what_ + ": rank " + std::to_string(rank_) + " has missed " +
                       NameSome(report.missed) +
                       ", which failed on the other ranks for that reason; " + kAllHaveToCall);
    }
  }
}

void ChannelState::ArrivedOn0(Peer& peer, const Frame& frame, CallReport report, TimePoint now) {
  Calls& calls = peer.calls;
  if (frame.kind == FrameKind::kCall) {
    peer.deadline = After(now, report.limit);
    for (const LeftCall& left : report.left) {
      calls.Comes(left.number, left.name);
      calls.Leaves(left.number, left.why);
    }
    calls.Comes(frame.call, std::move(report.text));
  } else if (frame.kind == FrameKind::kPast) {
    calls.OtherIsPast(std::move(report.text));
  } else if (frame.kind == FrameKind::kNote && frame.call == calls.joined()) {
    peer.note = std::move(report.text);
  } else if (frame.kind == FrameKind::kEnd && frame.call == calls.joined()) {
    Fail(peer, std::move(report.text), static_cast<int>(report.rank) - 1);
  } else if (frame.kind == FrameKind::kEnd) {
    calls.Leaves(frame.call, report.text);
  }
  Settle(peer, now);
}

/// On rank 0: does what follows from the calls of the two.
void ChannelState::Settle(Peer& peer, TimePoint now, std::optional<int> vote) {
  using Decided = CallDecision::Kind;
  CallDecision decision = peer.calls.Decide(vote);
  for (; decision.kind != Decided::kWait && decision.kind != Decided::kUnclear;
       decision = peer.calls.Decide(vote)) {
    if (decision.kind == Decided::kJoined) {
      Join(peer, decision);
    } else if (decision.kind == Decided::kOtherRankFails) {
      Put(peer, FrameKind::kEnd, decision.number, Ending(decision.why, decision.cause));
      DropBefore(&peer.messages, decision.number + 1);
      peer.comes_until = decision.other_waits ? After(now, kAfterAnotherCall) : peer.comes_until;
    } else {
      Fail(peer, decision.why, -1);
      if (peer.calls.open()) {
        Put(peer, FrameKind::kNote, peer.calls.open()->number,
            {.text = "rank 0, which was in " + what_ + " without it",
             .limit = decision.other_waits ? kAfterAnotherCall : 0,
             .waits_for_absent = true});
      }
    }
  }
  peer.unclear = decision.kind == Decided::kUnclear;
  if (unclear_ || peer.unclear) {
    Vote(now);
  }
}

/// On rank 0: decides, once all ranks are in a call, which part of them has missed one.
void ChannelState::Vote(TimePoint now) {
  std::vector<Peer*> unclear;
  std::map<std::string, int> ranks_in;
  int joined = 0;
  for (auto& [rank, peer] : peers_) {
    joined += peer.calls.joined() != 0 ? 1 : 0;
    if (peer.unclear && peer.calls.open()) {
      unclear.push_back(&peer);
      ++ranks_in[peer.calls.open()->name];
    }
  }
  unclear_ = !unclear.empty();
  if (!doomed_.empty() || unclear.empty() ||
      static_cast<std::size_t>(joined) + unclear.size() < peers_.size()) {
    return;
  }
  unclear_ = false;
  for (Peer* peer : unclear) {
    const int others = ranks_in[peer->calls.open()->name];
    Settle(*peer, now,
           static_cast<int>(others > joined + 1) - static_cast<int>(others < joined + 1));
  }
}

void ChannelState::Join(Peer& peer, const CallDecision& decision) {
  peer.call = number_;
  others_wait_until_ = std::min(others_wait_until_, peer.deadline);
  DropBefore(&peer.messages, decision.number);
  Put(peer, FrameKind::kCall, decision.number, {.missed = decision.missed_by_other});
  for (std::string& message : std::exchange(peer.unsent, {})) {
    frames_.emplace_back(peer.rank,
                         Frame{FrameKind::kMessage, decision.number, std::move(message)});
  }
  for (const bool by_0 : {false, true}) {
    const auto& missed = by_0 ? decision.missed_by_0 : decision.missed_by_other;
    if (!missed.empty()) {
      missed_[{missed, by_0}].push_back(peer.rank);
    }
  }
}

/// On another rank: fails the call that rank 0 has left without this rank.
void ChannelState::LeaveAsRank0Has(Peer& peer) {
  const bool alone = in_call_ && peer.call != number_ && peer.left != number_;
  if (const auto ended = alone ? ended_.Take(what_) : std::nullopt) {
    peer.left = number_;
    peer.left_why = EndedWithoutThisRank(ended->why);
    peer.left_cause = ended->cause;
  }
}

/// The call must fail: the reason follows the name of the rank.
void ChannelState::Fail(Peer& peer, std::string why, int cause) {
  Doom(peer.rank, why);
  peer.left = number_;
  peer.left_why = std::move(why);
  peer.left_cause = cause;
}

}  // namespace varve
