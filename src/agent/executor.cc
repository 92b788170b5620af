// A trainer's side of the agent. One thread receives the agent's messages; callers wait for their
// own answers. When the connection is lost all callers that wait get an error. The next save that
// is submitted connects again, and starts an agent if none runs. A save that the lost agent had
// accepted is not submitted again: it may have become visible.
//
// An agent that is lost need not be dead: it may be stopped, or have dropped us. Its trainer uses
// the memory again all the same, for training must not wait for the agent. So every save comes with
// a lease of its memory, a page that both processes see. The trainer revokes the lease before it
// uses the memory again without the agent's consent. The agent checks the lease after it has
// written a file and before it counts that file. A deferred save stays leased though its agent is
// lost: the agent may yet write it when this process has exited.

#include "agent/executor.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "agent/client.h"
#include "agent/shared_memory.h"
#include "async/submission.h"
#include "base/events.h"
#include "base/guarded.h"
#include "base/time_source.h"

namespace varve {
namespace {

/// Returns the error of a save whose agent was lost, for the reason given.
Status LostFor(const Status& why) {
  return Unavailable("the agent that was to write it is no longer reached: " + why.message());
}

/// The state of one turn: what has been sent and received for it.
struct Ticket {
  std::optional<Status> taken;                     // The answer to kSubmit.
  std::optional<Result<AsyncSaveReport>> outcome;  // kDone.
  bool forgotten = false;
  bool lost = false;  // Its connection was lost, for this reason:
  Status why_lost;
  std::shared_ptr<ValidityPage> lease;
};
using TicketPtr = std::shared_ptr<Ticket>;

class AgentExecutor final : public SaveExecutor {
 public:
  AgentExecutor(std::chrono::milliseconds answer_timeout, ReachAgent reach,
                std::shared_ptr<AgentLink> agent)
      : answer_timeout_(answer_timeout), reach_(std::move(reach)), agent_(std::move(agent)) {}
  AgentExecutor(const AgentExecutor&) = delete;
  AgentExecutor& operator=(const AgentExecutor&) = delete;
  ~AgentExecutor() override {
    {
      const std::scoped_lock lock(mutex_);
      SendToAgent({AgentVerb::kBye, 0, {}, {}});
    }
    Disconnect();
  }

  Status Attach(int fd, std::uint64_t blocks) override {
    if (pool_fd_ >= 0) {
      return InvalidArgument(
          "a connection to the agent serves one stager; make another for this one");
    }
    pool_fd_ = fd;
    pool_blocks_ = blocks;
    return Begin(0);
  }

  Status Submit(std::uint64_t turn, const Submission& save, bool* sent) override {
    *sent = false;
    VARVE_RETURN_IF_ERROR(Reconnect(turn));
    AgentMessage message{AgentVerb::kSubmit, turn, {}, {}};
    VARVE_ASSIGN_OR_RETURN(FileDescriptor blob, MakeBlob(EncodeSubmission(save)));
    const auto known = std::make_shared<Ticket>();
    VARVE_ASSIGN_OR_RETURN(known->lease, ValidityPage::Make());
    message.fds.push_back(std::move(blob));
    VARVE_ASSIGN_OR_RETURN(FileDescriptor lease, Duplicate(known->lease->fd().get()));
    message.fds.push_back(std::move(lease));
    std::unique_lock lock(mutex_);
    if (turns_.contains(turn)) {
      return FailedPrecondition("turn " + std::to_string(turn) + " has been submitted already");
    }
    Use(turn);
    turns_[turn] = known;
    if (Status status = lost_ ? CopyOf(why_lost_) : agent_->Send(message); !status.ok()) {
      Lose(std::move(status));
    } else {
      *sent = true;
    }
    if (!Await(&lock, [&] { return known->lost || known->taken.has_value(); })) {
      SendToAgent({AgentVerb::kCancel, turn, {}, {}});
      Lose(NoAnswer());
    }
    *sent = *sent && !known->taken;
    Status taken = known->taken ? *known->taken : LostFor(known->why_lost);
    if (!taken.ok()) {
      RevokeLease(turn);  // The agent may accept the save yet.
    }
    return taken;
  }

  void Pass(std::uint64_t turn) override {
    const std::scoped_lock lock(mutex_);
    Use(turn);
    SendToAgent({AgentVerb::kPass, turn, {}, {}});
  }

  void Cancel(std::uint64_t turn) override {
    const std::scoped_lock lock(mutex_);
    SendToAgent({AgentVerb::kCancel, turn, {}, {}});
  }

  bool Holds(std::uint64_t turn) override {
    const std::scoped_lock lock(mutex_);
    const auto found = turns_.find(turn);
    return found != turns_.end() && !found->second->lost;
  }

  Result<AsyncSaveReport> Wait(std::uint64_t turn, bool* lost) override {
    std::unique_lock lock(mutex_);
    const TicketPtr known = Known(turn);
    varve::Wait(changed_, lock, [&] { return known->lost || known->outcome.has_value(); });
    *lost = !known->outcome;
    if (*lost) {
      RevokeLease(turn);
    }
    return known->outcome ? *known->outcome : LostFor(known->why_lost);
  }

  void Forget(std::uint64_t turn) override {
    std::unique_lock lock(mutex_);
    const TicketPtr known = Known(turn);
    if (!known->lost) {
      Status asked = agent_->Send({AgentVerb::kForget, turn, {}, {}});
      if (asked.ok() && !Await(&lock, [&] { return known->lost || known->forgotten; })) {
        asked = NoAnswer();
      }
      if (!asked.ok()) {
        Lose(std::move(asked));
      }
    }
    if (!known->forgotten) {
      RevokeLease(turn);
    }
    turns_.erase(turn);
  }

 private:
  /// Returns the ticket of a turn. A turn without one counts as lost.
  TicketPtr Known(std::uint64_t turn) {
    const auto found = turns_.find(turn);
    if (found != turns_.end()) {
      return found->second;
    }
    auto lost = std::make_shared<Ticket>();
    lost->lost = true;
    lost->why_lost = CopyOf(why_lost_);
    return lost;
  }

  /// Marks a turn as used: it has been submitted or passed.
  void Use(std::uint64_t turn) {
    used_.insert(turn);
    while (used_.erase(all_used_below_) > 0) {
      ++all_used_below_;
    }
  }

  [[nodiscard]] Status NoAnswer() const {
    return Unavailable("the agent has not answered for " + std::to_string(answer_timeout_.count()) +
                       " ms");
  }

  /// Marks the agent as lost: it has exited, does not answer, or its messages cannot be received.
  /// The lock is held.
  void Lose(Status why) {
    if (!lost_) {
      why_lost_ = std::move(why);
    }
    if (!lost_ && EventsAreTaken()) {
      const bool harms = std::any_of(turns_.begin(), turns_.end(), [](const auto& entry) {
        return !entry.second->lost && !entry.second->outcome;
      });
      (void)Guarded([&] {
        ReportEvent({.level = harms ? EventLevel::kWarning : EventLevel::kInfo,
                     .message = "the agent is lost: " + why_lost_.ToString() +
                                "; the next save connects again, or starts another one"});
        return Status::Ok();
      });
    }
    lost_ = true;
    for (const auto& [turn, known] : turns_) {
      if (!known->lost) {
        known->lost = true;
        known->why_lost = CopyOf(why_lost_);
      }
    }
    agent_->Close();
    changed_.notify_all();
  }

  /// Revokes the lease of a turn whose memory is about to be used again. The lock is held.
  void RevokeLease(std::uint64_t turn) {
    if (const auto found = turns_.find(turn); found != turns_.end()) {
      found->second->lease->Revoke();
      turns_.erase(found);
    }
  }

  /// Waits for an answer. Returns false when none comes in time: then the agent counts as lost.
  template <class Predicate>
  bool Await(std::unique_lock<std::mutex>* lock, const Predicate& answered) {
    return WaitUntil(changed_, *lock, Now() + answer_timeout_, answered);
  }

  void SendToAgent(const AgentMessage& message) {
    if (!lost_) {
      (void)agent_->Send(message);
    }
  }

  /// Attaches the memory on a new connection and starts the thread that receives.
  Status Begin(std::uint64_t first_turn) {
    AgentMessage attach{AgentVerb::kAttach, 0, {}, {}};
    ByteWriter out(&attach.payload);
    out.U64(pool_blocks_);
    out.U64(first_turn);
    VARVE_ASSIGN_OR_RETURN(FileDescriptor pool, Duplicate(pool_fd_));
    attach.fds.push_back(std::move(pool));
    VARVE_RETURN_IF_ERROR(Ask(*agent_, attach, Now() + answer_timeout_).status());
    {
      const std::scoped_lock lock(mutex_);
      lost_ = false;
      // Turns need not come in order. This agent has not received the messages about later turns:
      // it would wait for those turns forever.
      for (auto turn = used_.upper_bound(first_turn); turn != used_.end(); ++turn) {
        SendToAgent({AgentVerb::kPass, *turn, {}, {}});
      }
    }
    Status listens = Guarded([&] {
      listener_ = Thread([this, agent = agent_] { Listen(*agent); });
      return Status::Ok();
    });
    if (!listens.ok()) {  // No thread would receive its answers.
      const std::scoped_lock lock(mutex_);
      Lose(CopyOf(listens));
    }
    return listens.Annotate("listen to the agent");
  }

  /// Connects again where the connection was lost. Refuses turns before `turn` that have not been
  /// submitted.
  Status Reconnect(std::uint64_t turn) {
    const std::scoped_lock one(reconnecting_);
    {
      const std::scoped_lock lock(mutex_);
      if (!lost_) {
        return Status::Ok();
      }
    }
    Disconnect();
    VARVE_ASSIGN_OR_RETURN(auto agent, reach_());
    {
      const std::scoped_lock lock(mutex_);
      agent_ = std::move(agent);
    }
    return Begin(turn);
  }

  void Disconnect() {
    agent_->Close();
    listener_.Join();
  }

  void Listen(AgentLink& agent) {
    while (true) {
      const auto message = Guarded([&] { return agent.Receive(Deadline::max()); });
      const std::scoped_lock lock(mutex_);
      Status noted = Guarded([&] { return message.ok() ? Note(*message) : message.status(); });
      if (!noted.ok()) {  // Also where there is no memory, or no descriptor, for what it sends.
        Lose(std::move(noted));
        return;
      }
      changed_.notify_all();
    }
  }

  Status Note(const AgentMessage& message) {
    const auto found = turns_.find(message.turn);
    if (found == turns_.end() || found->second->lost) {
      return Status::Ok();
    }
    Ticket& turn = *found->second;
    switch (message.verb) {
      case AgentVerb::kOk: turn.taken = Status::Ok(); break;
      case AgentVerb::kRefused: turn.taken = DecodeRefusal(message.payload); break;
      case AgentVerb::kForgotten: turn.forgotten = true; break;
      case AgentVerb::kDone: turn.outcome = OutcomeOf(message); break;
      default: break;
    }
    return Status::Ok();
  }

  static Result<AsyncSaveReport> OutcomeOf(const AgentMessage& message) {
    if (message.fds.empty()) {
      return message.payload.starts_with('\0')
                 ? DecodeReport(std::string_view(message.payload).substr(1))
                 : Result<AsyncSaveReport>(DecodeRefusal(message.payload));
    }
    VARVE_ASSIGN_OR_RETURN(const Bytes report, ReadBlob(message.fds[0]));
    return DecodeReport(report);
  }

  const std::chrono::milliseconds answer_timeout_;
  const ReachAgent reach_;
  int pool_fd_ = -1;
  std::uint64_t pool_blocks_ = 0;
  std::mutex reconnecting_;
  std::mutex mutex_;  // Guards all members below but the thread.
  std::condition_variable changed_;
  std::shared_ptr<AgentLink> agent_;
  bool lost_ = true;
  Status why_lost_;
  std::map<std::uint64_t, TicketPtr> turns_;
  std::uint64_t all_used_below_ = 0;
  std::set<std::uint64_t> used_;  // Turns from first_turn_ on.
  Thread listener_;
};

}  // namespace

std::shared_ptr<SaveExecutor> MakeAgentExecutor(std::chrono::milliseconds answer_timeout,
                                                ReachAgent reach,
                                                std::shared_ptr<AgentLink> agent) {
  return std::make_shared<AgentExecutor>(answer_timeout, std::move(reach), std::move(agent));
}

Result<std::shared_ptr<SaveExecutor>> ConnectToAgent(const AgentOptions& options) {
  if (options.answer_timeout <= std::chrono::milliseconds(0)) {
    return InvalidArgument("an agent that is to answer in " +
                           std::to_string(options.answer_timeout.count()) + " ms");
  }
  AgentOptions sensible = options;
  sensible.answer_timeout =
      std::min<std::chrono::milliseconds>(options.answer_timeout, std::chrono::hours(24));
  const auto reach = [sensible]() -> Result<std::shared_ptr<AgentLink>> {
    VARVE_ASSIGN_OR_RETURN(auto connection, ConnectOrStart(sensible));
    return std::shared_ptr<AgentLink>(std::move(connection));
  };
  VARVE_ASSIGN_OR_RETURN(auto agent, reach());
  return MakeAgentExecutor(sensible.answer_timeout, reach, std::move(agent));
}

}  // namespace varve
