// The relays of a channel of many ranks. A connection from every rank would cost rank 0 a descriptor
// and two packets a rank for each exchange; with relays it has some dozens of connections, and
// frames that are equal come as one. The ranks know nothing of it but whom they connect to: the
// account of channel_state.cc stands, between rank 0 and every other rank.
//
//  1. A leader (RankTree) opens the listening socket of its relay with its first call on a channel
//     and publishes the address beside that of rank 0, before it waits for anything. So ranks
//     behind it do not wait for rank 0 to come.
//  2. The leader connects its relay to rank 0, or to the relay above, and itself to its relay. From
//     then on a thread of the relay passes frames on, whether the leader is in a call or not: a
//     leader that computes or comes late holds no other rank up, and is missed by its own number.
//  3. A rank looks for the address of its leader's relay. Where none is there after some seconds,
//     the leader is late or has no relay: the rank connects to rank 0.
//  4. The relay tells rank 0 which ranks are connected (kHello) and lost (kLost); in between it
//     sends their frames with their numbers (kRouted). Frames of several ranks that are equal become
//     one; they wait for each other a millisecond at most. A rank's frames keep their order.
//  5. A relay dies with the leader's process. The relay above, or rank 0, sees its connection end:
//     the leader is lost, and the ranks behind it are lost with it. These see their own connection
//     end, and name the leader.
//  6. A relay whose way to rank 0 ends says why to the ranks behind it, and ends. The leader makes
//     another one with its next call, and so do all: they read the addresses again.
//  7. A leader's process that exits would take with it what its relay has not passed on, such as
//     the end of the last save. So the relay goes on until the ranks behind it have left, or have
//     been silent for a second; the exit of the process waits for that. The leader gets what is
//     sent to all ranks after the others.
//  8. A relay reads nothing from the ranks behind it while its connection to rank 0 takes no more:
//     it holds some MiB, and not the plans of all ranks.

#include "coordinate/channel/relay.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include <sys/socket.h>
#include <unistd.h>

#include "base/file_descriptor.h"
#include "base/guarded.h"
#include "base/threads.h"
#include "coordinate/channel/links.h"
#include "coordinate/channel/relay_state.h"

namespace varve {
namespace {

/// Bytes that wait for the connection to rank 0 while the relay reads on.
constexpr std::size_t kMostUnsent = std::size_t{32} << 20;
/// A relay that is to end does so when it has passed nothing on for so long,
constexpr auto kQuiet = std::chrono::seconds(1);
/// and after this in any case.
constexpr auto kLongestEnd = std::chrono::seconds(10);

}  // namespace

/// A relay that has started; its thread owns it too.
class Relay::Running final : public Links::Owner {
 public:
  Running(int leader, int above, int size)
      : leader_(leader), size_(size), state_(leader, above, size), links_(this) {}

  std::optional<int> KeyOf(const CallReport& hello) override {
    const int key = KeyOfHello(hello, size_);
    return key < 0 ? std::nullopt : std::optional(key);
  }
  void Connected(int key) override { state_.Connected(key, Now()); }
  void Arrived(int key, Frame frame) override {
    busy_ = Now();
    state_.Arrived(key, std::move(frame), busy_);
  }
  void Lost(int key, const std::string& /*why*/) override { state_.Lost(key, Now()); }
  void Refused(std::string /*why*/) override {}  // Such a rank connects to rank 0.

  Links& links() { return links_; }
  /// Passes frames on until rank 0 is lost, or the relay is to end.
  void Run();
  void End() {
    ends_ = true;
    links_.Wake();
  }

 private:
  void Send() {
    for (auto& [key, frame] : state_.TakeFrames(Now())) {
      links_.Put(key, std::move(frame));
    }
  }
  /// Returns true when a relay that is to end may do so.
  [[nodiscard]] bool IsQuiet(TimePoint since) const {
    const std::size_t own =
        (links_.Has(RelayState::kUp) ? 1U : 0U) + (links_.Has(leader_) ? 1U : 0U);
    const bool has_left = links_.size() == own;
    const bool is_quiet = Now() - std::max(since, busy_) > kQuiet && !links_.HasUnsent();
    return has_left || is_quiet || Now() - since > kLongestEnd;
  }

  const int leader_;
  const int size_;
  std::atomic<bool> ends_{false};
  TimePoint busy_{};
  RelayState state_;
  Links links_;
};

void Relay::Running::Run() {
  std::optional<TimePoint> ending;
  while (!state_.has_ended()) {
    if (ends_ && !ending) {
      ending = Now();
      links_.StopListening();
    }
    Send();
    if (ending && IsQuiet(*ending)) {
      break;
    }
    const TimePoint until = std::min(
        state_.due(), Now() + (ending ? std::chrono::milliseconds(20) : std::chrono::minutes(10)));
    if (links_.UnsentTo(RelayState::kUp) > kMostUnsent) {
      links_.PollOne(RelayState::kUp, until);
    } else {
      links_.Poll(until);
    }
  }
  links_.StopListening();  // The others read the address of the next one.
  const TimePoint until = Now() + kQuiet;
  Send();
  while (links_.HasUnsent() && Now() < until) {
    links_.Poll(until);
  }
  links_.CloseAll(kLostReason);
}

namespace {

/// The relays of this process that run. Never destroyed: the exit of the process waits for them.
class AtExit {
 public:
  static AtExit& Instance() {
    static auto* const made = [] {
      auto* const all = new AtExit;
      (void)std::atexit([] { Instance().EndAll(); });
      return all;
    }();
    return *made;
  }

  void Add(std::shared_ptr<Relay::Running> one) {
    const std::scoped_lock lock(mutex_);
    running_.insert(std::move(one));
  }
  void Remove(const std::shared_ptr<Relay::Running>& one) {
    const std::scoped_lock lock(mutex_);
    running_.erase(one);
    changed_.notify_all();
  }

 private:
  void EndAll() {
    if (::getpid() != process_) {
      return;  // A forked child has not the relays' threads.
    }
    std::unique_lock lock(mutex_);
    for (const std::shared_ptr<Relay::Running>& one : running_) {
      one->End();
    }
    changed_.wait_for(lock, 2 * kLongestEnd, [&] { return running_.empty(); });
  }

  const pid_t process_ = ::getpid();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::shared_ptr<Relay::Running>> running_;
};

}  // namespace

Relay::Relay(int leader, int size, Socket listener, const Address& address)
    : leader_(leader),
      size_(size),
      listener_(std::move(listener)),
      token_(address.token),
      published_(EncodeFields(address)) {}

Relay::~Relay() {
  if (running_) {
    running_->End();
  }
}

Result<std::unique_ptr<Relay>> Relay::Make(int leader, int size) {
  VARVE_ASSIGN_OR_RETURN(auto listening, Listen());
  return std::unique_ptr<Relay>(
      new Relay(leader, size, std::move(listening.first), listening.second));
}

Result<Socket> Relay::Start(Connection up, int above) {
  return Guarded([&]() -> Result<Socket> {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
      return NoDescriptor("make a relay", errno);
    }
    Socket own(ends[0]);
    Socket relays(ends[1]);
    const auto running = std::make_shared<Running>(leader_, above, size_);
    if (!running->links().is_valid()) {
      return NoDescriptor("make a relay", EMFILE);
    }
    running->links().Listen(std::move(listener_), token_, size_);
    running->links().Add(RelayState::kUp, std::move(up));
    running->links().Add(leader_, Connection(std::move(relays), true));
    auto& all = AtExit::Instance();
    all.Add(running);
    try {
      StartThread<std::thread>([running, &all] {
        try {
          running->Run();
        } catch (const std::bad_alloc&) {
          running->links().Abandon();  // The ranks behind it fail; the leader's training goes on.
        }
        all.Remove(running);
      }).detach();
    } catch (const std::system_error& error) {
      all.Remove(running);
      return Unavailable(std::string("start the thread of a relay: ") + error.what());
    }
    running_ = running;
    return own;
  });
}

}  // namespace varve
