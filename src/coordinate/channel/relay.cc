// The relays of a channel of many ranks. A connection from every rank would cost rank 0 a
// descriptor, and two packets a rank for each exchange; with relays it has some dozens of
// connections, and frames that are equal come as one. Of relays a rank knows the one that it
// connects to: between rank 0 and every other rank the account of channel_state.cc stands.
//
//  1. A leader (RankTree) opens the listening socket of its relay with its first call on a channel
//     and publishes the address beside that of rank 0, before it waits for anything. So ranks
//     behind it do not wait for rank 0 to come.
//  2. The leader connects its relay to rank 0, or to the relay above, and itself to its relay. From
//     then on a thread of the relay passes frames on, whether the leader is in a call or not: a
//     leader that computes or comes late holds no other rank up, and is missed by its own number.
//  3. A rank looks for the address of its leader's relay, connects, and waits for an answer, which
//     the relay gives when it has reached rank 0. Where rank 0 can be reached and the relay does
//     not answer for some seconds, or refuses, its leader is late, dead or without a relay: the
//     rank connects to rank 0. The answer has the address of rank 0: a rank that finds nothing
//     there at a later call knows that rank 0 has ended, and does not wait for it.
//  4. The relay tells rank 0 which ranks are connected (kHello) and lost (kLost); in between it
//     sends their frames with their numbers (kRouted). Frames of several ranks that are equal
//     become one; they wait for each other a millisecond at most. A rank's frames keep their order.
//  5. A relay dies with the leader's process. The relay above, or rank 0, sees its connection end:
//     the leader is lost, and the ranks behind it are lost with it. These see their own connection
//     end, and name the leader.
//  6. A relay whose way to rank 0 ends says why to the ranks behind it, and ends. The leader makes
//     another one with its next call, and so do all: they read the addresses again.
//  7. A leader's process that exits would take with it what its relay has not passed on, such as
//     the end of the last save. So the relay goes on until the ranks behind it have left, or none
//     of them waits for an answer and all have been silent for a second; the exit of the process
//     waits for that, ten seconds at most. The leader gets what is sent to all ranks after the
//     others. Its own messages have left when the relay has sent them, and not before.
//  8. While the frames that a relay holds exceed 32 MiB it begins to read none: it finishes those
//     that it has begun, one of each of its connections at most. Where none of these goes on for a
//     second, it looks at all connections.

#include "coordinate/channel/relay.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <limits>
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
#include "base/of_process.h"
#include "base/threads.h"
#include "coordinate/channel/links.h"
#include "coordinate/channel/relay_state.h"

namespace varve {
namespace {

/// Bytes that a relay holds while it reads on.
constexpr std::size_t kMostRead = std::size_t{32} << 20;
/// Connections that a relay may have, about, with the default fan-out.
constexpr int kConnections = 64;
/// A relay that is to end does so when it has passed nothing on for so long,
constexpr auto kQuiet = std::chrono::seconds(1);
/// and after this in any case.
constexpr auto kLongestEnd = std::chrono::seconds(10);

}  // namespace

/// A relay that has started; its thread owns it too.
class Relay::Running final : public Links::Owner {
 public:
  Running(int leader, int above, int size, const std::string& rank_0)
      : leader_(leader), size_(size), state_(leader, above, size, rank_0), links_(this) {}

  std::optional<int> KeyOf(const CallReport& hello) override {
    const int key = KeyOfHello(hello, size_);
    return key < 0 ? std::nullopt : std::optional(key);
  }
  void Connected(int key) override { state_.Connected(key, Now()); }
  void Arrived(int key, Frame frame) override {
    busy_ = Now();
    own_frames_ += key == leader_ ? 1 : 0;
    state_.Arrived(key, std::move(frame), busy_);
  }
  void Lost(int key, const std::string& /*why*/) override { state_.Lost(key, Now()); }
  /// Further ranks are refused, and connect to rank 0.
  void Refused(std::string /*why*/) override { links_.StopListening(); }
  [[nodiscard]] bool TakesMore() const override {
    if (takes_all_) {
      return true;
    }
    std::size_t half_read = 0;
    (void)links_.HalfRead(&half_read);
    return links_.UnsentTo(RelayState::kUp) + state_.held() + half_read <= kMostRead;
  }

  Links& links() { return links_; }
  /// Passes frames on until rank 0 is lost, or the relay is to end.
  void Run();
  /// Closes all connections, and ends the waits of Flush.
  void Abandon();
  void End() {
    ends_ = true;
    links_.Wake();
  }
  /// Waits until frames of the leader have left. Threads: the leader's.
  bool Flush(std::uint64_t frames, TimePoint until) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, until, [&] { return passed_ >= frames; });
  }

 private:
  void Send(TimePoint due) {
    for (auto& [key, frame] : state_.TakeFrames(due)) {
      links_.Put(key, std::move(frame));
    }
    const bool has_left = state_.held() == 0 && state_.due() == TimePoint::max() &&
                          links_.UnsentTo(RelayState::kUp) == 0;
    if (const std::scoped_lock lock(mutex_); has_left && passed_ != own_frames_) {
      passed_ = own_frames_;
      changed_.notify_all();
    }
  }
  void Read(TimePoint until);
  /// Returns true when a relay that is to end may do so.
  [[nodiscard]] bool IsQuiet(TimePoint since) const {
    const std::size_t own =
        (links_.Has(RelayState::kUp) ? 1U : 0U) + (links_.Has(leader_) ? 1U : 0U);
    const bool has_left =
        links_.size() == own && state_.held() == 0 && links_.UnsentTo(RelayState::kUp) == 0;
    const bool is_quiet =
        Now() - std::max(since, busy_) > kQuiet && !links_.HasUnsent() && !state_.OthersWait();
    return has_left || is_quiet || Now() - since > kLongestEnd;
  }

  const int leader_;
  const int size_;
  std::atomic<bool> ends_{false};
  bool takes_all_ = false;  // However much it holds.
  TimePoint busy_{};
  std::uint64_t own_frames_ = 0;  // Of the leader, read.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t passed_ = 0;  // Those of them that have left. Guarded by the mutex.
  RelayState state_;
  Links links_;
};

/// Reads from all connections; where it holds much, from those that are needed to hold less.
void Relay::Running::Read(TimePoint until) {
  if (TakesMore()) {
    links_.Poll(until);
    return;
  }
  std::size_t bytes = 0;
  std::vector<int> keys = links_.HalfRead(&bytes);
  if (links_.UnsentTo(RelayState::kUp) > kMostRead) {
    keys.clear();
  }
  keys.push_back(RelayState::kUp);
  // A rank that was interrupted in the middle of a frame would else hold up all others.
  if (!links_.PollOnly(keys, std::min(until, Now() + kQuiet)) && Now() < until) {
    takes_all_ = true;
    links_.Poll(Now());
    takes_all_ = false;
  }
}

void Relay::Running::Run() {
  std::optional<TimePoint> ending;
  while (!state_.has_ended()) {
    if (ends_ && !ending) {
      ending = Now();
      links_.StopListening();
    }
    Send(Now());
    if (ending && IsQuiet(*ending)) {
      break;
    }
    const auto longest = ending ? std::chrono::milliseconds(20) : std::chrono::minutes(10);
    Read(std::min(state_.due(), Now() + longest));
  }
  links_.StopListening();  // The others read the address of the next one.
  takes_all_ = true;
  links_.Poll(Now());  // The leader's last frames.
  const TimePoint until = Now() + kQuiet;
  Send(TimePoint::max());
  while (links_.HasUnsent() && Now() < until) {
    links_.Poll(until);
  }
  links_.CloseAll(kLostReason);
  Abandon();
}

void Relay::Running::Abandon() {
  links_.Abandon();
  const std::scoped_lock lock(mutex_);
  passed_ = std::numeric_limits<std::uint64_t>::max();  // Nothing more leaves.
  changed_.notify_all();
}

namespace {

/// The relays of this process that run. Never destroyed: the exit of the process waits for them. A
/// forked child, which has not their threads, begins with none.
class AtExit {
 public:
  static AtExit& Instance() {
    static auto& of_process = *new OfProcess<AtExit>();
    static const int registered = std::atexit([] { of_process.Get().EndAll(); });
    (void)registered;
    return of_process.Get();
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
    std::unique_lock lock(mutex_);
    for (const std::shared_ptr<Relay::Running>& one : running_) {
      one->End();
    }
    changed_.wait_for(lock, 2 * kLongestEnd, [&] { return running_.empty(); });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::shared_ptr<Relay::Running>> running_;
};

}  // namespace

Relay::Relay(int leader, int size, Socket listener, const Address& address)
    : leader_(leader),
      size_(size),
      process_(::getpid()),
      listener_(std::move(listener)),
      token_(address.token),
      published_(EncodeFields(address)) {}

Relay::~Relay() {
  if (running_ && process_ == ::getpid()) {
    running_->End();
  }
}

bool Relay::Flush(std::uint64_t frames, TimePoint until) {
  const bool runs = running_ != nullptr && process_ == ::getpid();
  return !runs || running_->Flush(frames, until);
}

Result<std::unique_ptr<Relay>> Relay::Make(int leader, int size) {
  VARVE_ASSIGN_OR_RETURN(auto listening, Listen(kConnections));
  return std::unique_ptr<Relay>(
      new Relay(leader, size, std::move(listening.first), listening.second));
}

Result<Socket> Relay::Start(Connection up, int above, const std::string& rank_0) {
  return Guarded([&]() -> Result<Socket> {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
      return SystemError("make a relay", errno);
    }
    Socket own(ends[0]);
    Socket relays(ends[1]);
    const auto running = std::make_shared<Running>(leader_, above, size_, rank_0);
    if (!running->links().is_valid()) {
      return SystemError("make a relay", EMFILE);
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
          running->Abandon();  // The ranks behind it fail; the leader's training goes on.
        }
        all.Remove(running);
      }).detach();
    } catch (const std::exception& error) {
      all.Remove(running);
      return Unavailable(std::string("start the thread of a relay: ") + error.what());
    }
    running_ = running;
    return own;
  });
}

}  // namespace varve
