/// The channel of a set of ranks over sockets: messages between rank 0 and every other rank, by
/// relays where there are many. The account is in channel_state.cc.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "coordinate/channel/channel_state.h"
#include "coordinate/channel/connection.h"
#include "coordinate/channel/links.h"
#include "coordinate/channel/relay.h"
#include "coordinate/channel/relay_state.h"
#include "coordinate/channel/routed.h"
#include "coordinate/channel/search.h"
#include "varve/coordinator.h"

namespace varve {

struct ChannelOptions {
  int rank = 0;
  int size = 1;
  /// Called on the thread that waits, with a line for the log. May be empty.
  std::function<void(const std::string&)> log{};
  /// Time after which a wait is logged; the intervals double from there.
  std::chrono::milliseconds first_notice = std::chrono::seconds(30);
  /// The ranks make one call for as long as the channel lives: each wait has a deadline of its own,
  /// and the call has none.
  bool one_call = false;
  /// Time in which the last messages leave when the channel is destroyed.
  std::chrono::milliseconds last_messages{0};
  /// As RankTree has it; the same on all ranks. Nothing: as the number of ranks asks for.
  std::optional<int> fan_out{};
};

/// One rank's end. A call is Enter, messages, Leave.
///
/// Threads: a call is made by one thread. Interrupt and Report may be called by any thread while
/// another one waits.
class Channel final : public Coordinator, private Links::Owner {
 public:
  explicit Channel(ChannelOptions options);
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel() override;

  /// Errors: Unavailable where the process has no descriptors for a channel; InvalidArgument where
  /// VARVE_FAN_OUT is no fan-out.
  [[nodiscard]] Status CheckSockets() const;
  /// Rank 0 and this rank are connected, or this is rank 0: Enter does not wait.
  [[nodiscard]] bool IsReady();
  /// Makes the next calls wait again after Interrupt.
  void Resume();
  /// Enters a call. `what` names it and is the same on all ranks, `limit` is the number of seconds
  /// for which it waits for others. Waits until rank 0 can be reached, where IsReady is false; it
  /// is found in the rendezvous under `key`. When that fails the others learn of it with the next
  /// call.
  Status Enter(const std::string& what, double limit, Deadline until, Rendezvous& rendezvous,
               const std::string& key);
  /// Leaves the call; does nothing outside of one. With a reason, the ranks that still wait for
  /// this one receive it. `cause` is the rank that made this one leave; -1: none did. A message
  /// that has not left when the process ends is lost: see Flush.
  void Leave(const std::string& why, int cause);
  /// Waits until all sent messages have left; returns false where some have not.
  bool Flush(Deadline deadline);

  [[nodiscard]] int rank() const override { return options_.rank; }
  [[nodiscard]] int size() const override { return options_.size; }
  Status Send(int to, std::string_view message, Deadline deadline) override;
  Result<std::string> Receive(int from, Deadline deadline) override;
  void HoldSent() override { holds_ = true; }
  void SendHeld(Deadline deadline) override;

  /// Ends the wait of another thread of this rank, and all further ones until Resume.
  void Interrupt();
  /// Sends rank 0 how far this rank is; nothing while another thread uses the channel.
  void Report(std::string note);
  /// Tells the ranks that wait for this one in an earlier call that it has missed that. Calls come
  /// in the order of the numbers in their names. To be called between calls, again and again.
  void TellPast(const std::string& name);

  /// Returns a channel of the same ranks for messages in the background, made in the call that the
  /// ranks are in. `name` is that of its one call, for the log. Collective; fails on all of them
  /// where one cannot connect.
  Result<std::shared_ptr<Channel>> MakeBackground(double limit, const std::string& name);

  /// Closes all sockets.
  void Close();

  [[nodiscard]] std::string what();
  /// The rank that made rank 0 leave this rank's call, where rank 0 has sent it; else -1.
  [[nodiscard]] int cause();
  /// A message of this call did not come or could not be sent: the ranks may be out of step.
  [[nodiscard]] bool lost() const { return lost_; }

 private:
  Result<std::string> Publish();
  Status Reach(const Search& search);
  [[nodiscard]] CallReport Hello(bool of_relay) const;
  Status StartRelay(FoundEnd* found, Relay* relay) const;
  void Join(FoundEnd found, std::unique_ptr<Relay> relay);
  Result<std::string> PublishForBackground();
  Status JoinInBackground(const std::string& way, Deadline until, int wake);
  Status AcceptAll(Deadline until);
  void Begin(const std::string& what, double limit);
  [[nodiscard]] std::string Interrupted() const;
  [[nodiscard]] Status CheckPeer(int peer) const;

  // With the lock held.
  void PollSockets(Deadline until);
  void SendFrames();
  void SendMerged();
  void WaitForUnsent(int rank, Deadline deadline);

  // Of Links::Owner, with the lock held.
  std::optional<int> KeyOf(const CallReport& hello) override;
  void Connected(int key) override;
  void Arrived(int key, Frame frame) override;
  void Lost(int key, const std::string& why) override;
  void Refused(std::string why) override { state_.SetRefused(std::move(why)); }

  void LogLines();

  const ChannelOptions options_;
  const Result<int> fan_out_;
  const RankTree tree_;
  const pid_t
      process_;  // A forked child has the sockets' numbers, and none of the channel's threads.
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> lost_{false};
  std::atomic<bool> holds_{false};  // Between HoldSent and SendHeld.
  std::mutex mutex_;                // Guards what follows.
  Address address_;
  ChannelState state_;
  RelayedRanks relayed_;          // On rank 0.
  Links links_;                   // By rank, and by KeyOfRelay.
  std::unique_ptr<Relay> relay_;  // Of a leader.
  int leader_ = 0;                // Whose relay this rank is connected to; 0: it has none.
  std::uint64_t to_relay_ = 0;    // Frames that this rank has sent by its connection.
  std::string known_;             // Search::known.
};

}  // namespace varve
