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

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "agent/client.h"
#include "agent/executor_machine.h"
#include "agent/shared_memory.h"
#include "base/events.h"
#include "base/guarded.h"
#include "base/time_source.h"

namespace varve {
namespace {

/// Returns the error of a save whose agent was lost, for the reason given.
Status LostFor(const Status& why) {
  return Unavailable("the agent that was to write it is no longer reached: " + why.message());
}

/// The messages received for a ticket, beside its state.
struct SentSave {
  std::optional<Status> taken;                     // The answer to kSubmit.
  std::optional<Result<AsyncSaveReport>> outcome;  // kDone.
  std::optional<Status> why_lost;
  std::shared_ptr<ValidityPage> lease;
};
using SentSavePtr = std::shared_ptr<SentSave>;

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
      Take(executor_event::Lost{});  // From here on nothing is lost.
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

  Status Submit(std::uint64_t ticket, const Submission& save, bool* sent) override {
    *sent = false;
    VARVE_RETURN_IF_ERROR(Reconnect(ticket));
    AgentMessage message{AgentVerb::kSubmit, ticket, {}, {}};
    VARVE_ASSIGN_OR_RETURN(FileDescriptor blob, MakeBlob(EncodeSubmission(save)));
    const auto known = std::make_shared<SentSave>();
    VARVE_ASSIGN_OR_RETURN(known->lease, ValidityPage::Make());
    message.fds.push_back(std::move(blob));
    VARVE_ASSIGN_OR_RETURN(FileDescriptor lease, Duplicate(known->lease->fd().get()));
    message.fds.push_back(std::move(lease));
    std::unique_lock lock(mutex_);
    if (sent_.contains(ticket)) {
      return FailedPrecondition("ticket " + std::to_string(ticket) + " has been submitted already");
    }
    sent_[ticket] = known;
    Take(executor_event::Submitted{ticket});
    if (!is_.connected) {
      known->why_lost = CopyOf(why_lost_);
    } else if (Status status = agent_->Send(message); !status.ok()) {
      Lose(std::move(status));
    } else {
      *sent = true;
    }
    if (!Await(&lock, [&] { return StateOf(is_, ticket) != TicketState::kSent; })) {
      SendToAgent({AgentVerb::kCancel, ticket, {}, {}});
      Lose(NoAnswer());
    }
    *sent = *sent && !known->taken;
    Status taken = known->taken ? *known->taken : LostFor(*known->why_lost);
    if (!taken.ok()) {
      GiveUp(ticket);  // The agent may accept the save yet.
    }
    return taken;
  }

  void Pass(std::uint64_t ticket) override {
    const std::scoped_lock lock(mutex_);
    Take(executor_event::Passed{ticket});
    SendToAgent({AgentVerb::kPass, ticket, {}, {}});
  }

  void Cancel(std::uint64_t ticket) override {
    const std::scoped_lock lock(mutex_);
    SendToAgent({AgentVerb::kCancel, ticket, {}, {}});
  }

  bool Holds(std::uint64_t ticket) override {
    const std::scoped_lock lock(mutex_);
    return !IsLost(ticket);
  }

  Result<AsyncSaveReport> Wait(std::uint64_t ticket, bool* lost) override {
    std::unique_lock lock(mutex_);
    const SentSavePtr known = Known(ticket);
    varve::Wait(changed_, lock, [&] { return known->outcome.has_value() || IsLost(ticket); });
    *lost = !known->outcome;
    if (*lost) {
      GiveUp(ticket);
    }
    return known->outcome ? *known->outcome : LostFor(*known->why_lost);
  }

  void Forget(std::uint64_t ticket) override {
    std::unique_lock lock(mutex_);
    if (!IsLost(ticket)) {
      Status asked = agent_->Send({AgentVerb::kForget, ticket, {}, {}});
      const auto is_forgotten = [&] {
        return StateOf(is_, ticket) == TicketState::kForgotten || IsLost(ticket);
      };
      if (asked.ok() && !Await(&lock, is_forgotten)) {
        asked = NoAnswer();
      }
      if (!asked.ok()) {
        Lose(std::move(asked));
      }
    }
    GiveUp(ticket);
  }

 private:
  /// Returns what is known of a ticket. One that was not submitted counts as lost.
  SentSavePtr Known(std::uint64_t ticket) {
    const auto found = sent_.find(ticket);
    if (found != sent_.end()) {
      return found->second;
    }
    auto lost = std::make_shared<SentSave>();
    lost->why_lost = CopyOf(why_lost_);
    return lost;
  }

  [[nodiscard]] bool IsLost(std::uint64_t ticket) const {
    return StateOf(is_, ticket).value_or(TicketState::kLost) == TicketState::kLost;
  }

  /// Makes the step of an event, and what follows from it. The lock is held.
  void Take(const ExecutorEvent& event) {
    const ExecutorActions actions = Step(&is_, event);
    if (actions.revoke) {
      sent_.at(*actions.revoke)->lease->Revoke();
    }
    if (actions.close) {
      agent_->Close();
    }
    for (const std::uint64_t ticket : actions.pass) {
      SendToAgent({AgentVerb::kPass, ticket, {}, {}});
    }
    changed_.notify_all();
  }

  /// Ends a ticket whose memory is about to be used again. The lock is held.
  void GiveUp(std::uint64_t ticket) {
    Take(executor_event::GivenUp{ticket});
    sent_.erase(ticket);
  }

  [[nodiscard]] Status NoAnswer() const {
    return Unavailable("the agent has not answered for " + std::to_string(answer_timeout_.count()) +
                       " ms")
        .With({.system_error = ETIMEDOUT});
  }

  /// Marks the agent as lost: it has exited, does not answer, or its messages cannot be received.
  /// The lock is held.
  void Lose(Status why) {
    if (is_.connected) {
      why_lost_ = std::move(why);
      ReportLoss();
    }
    for (const auto& [ticket, known] : sent_) {
      if (!known->why_lost) {
        known->why_lost = CopyOf(why_lost_);
      }
    }
    Take(executor_event::Lost{});
  }

  /// Reports that the agent is lost; it harms only where it has saves.
  void ReportLoss() {
    ReportEvent([&] {
      const bool harms = std::any_of(sent_.begin(), sent_.end(), [&](const auto& entry) {
        return !IsLost(entry.first) && !entry.second->outcome;
      });
      return Event{.level = harms ? EventLevel::kWarning : EventLevel::kInfo,
                   .message = "the agent is lost: " + why_lost_.ToString() +
                              "; the next save connects again, or starts another one"};
    });
  }

  /// Waits for an answer. Returns false when none comes in time: then the agent counts as lost.
  template <class Predicate>
  bool Await(std::unique_lock<std::mutex>* lock, const Predicate& answered) {
    return WaitUntil(changed_, *lock, Now() + answer_timeout_, answered);
  }

  void SendToAgent(const AgentMessage& message) {
    if (is_.connected) {
      (void)agent_->Send(message);
    }
  }

  /// Attaches the memory on a new connection and starts the thread that receives.
  Status Begin(std::uint64_t first_ticket) {
    AgentMessage attach{AgentVerb::kAttach, 0, {}, {}};
    ByteWriter out(&attach.payload);
    out.U64(pool_blocks_);
    out.U64(first_ticket);
    VARVE_ASSIGN_OR_RETURN(FileDescriptor pool, Duplicate(pool_fd_));
    attach.fds.push_back(std::move(pool));
    VARVE_RETURN_IF_ERROR(Ask(*agent_, attach, Now() + answer_timeout_).status());
    {
      const std::scoped_lock lock(mutex_);
      Take(executor_event::Connected{first_ticket});
    }
    Status listens =
        Guarded([&] { listener_ = Thread([this, agent = agent_] { Listen(*agent); }); });
    if (!listens.ok()) {  // No thread would receive its answers.
      const std::scoped_lock lock(mutex_);
      Lose(CopyOf(listens));
    }
    return listens.Annotate("listen to the agent");
  }

  /// Connects again where the connection was lost. Refuses tickets below `ticket` that have not
  /// been submitted.
  Status Reconnect(std::uint64_t ticket) {
    const std::scoped_lock one(reconnecting_);
    {
      const std::scoped_lock lock(mutex_);
      if (is_.connected && agent_->IsOpen()) {
        return Status::Ok();
      }
    }
    Disconnect();  // Where the agent has just ended, its last messages are taken first.
    VARVE_ASSIGN_OR_RETURN(auto agent, reach_());
    {
      const std::scoped_lock lock(mutex_);
      agent_ = std::move(agent);
    }
    return Begin(ticket);
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
    }
  }

  Status Note(const AgentMessage& message) {
    const std::uint64_t ticket = message.ticket;
    if (message.verb == AgentVerb::kRefused && ticket == kNoTicket) {
      return DecodeRefusal(message.payload);  // The agent closes the connection.
    }
    if (IsLost(ticket)) {
      return Status::Ok();
    }
    SentSave& save = *sent_.at(ticket);
    switch (message.verb) {
      case AgentVerb::kOk:
      case AgentVerb::kRefused:
        save.taken = message.verb == AgentVerb::kOk ? Status::Ok() : DecodeRefusal(message.payload);
        Take(executor_event::Answered{ticket, message.verb == AgentVerb::kOk});
        break;
      case AgentVerb::kForgotten: Take(executor_event::Forgotten{ticket}); break;
      case AgentVerb::kDone:
        save.outcome = OutcomeOf(message);
        Take(executor_event::Ended{ticket});
        break;
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
  ExecutorState is_;
  Status why_lost_;
  std::map<std::uint64_t, SentSavePtr> sent_;  // Of is_.tickets.
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
