#include "sim/agents.h"

#include <algorithm>
#include <utility>

#include <unistd.h>

#include "async/submission.h"

namespace varve::sim {
namespace {

/// How often the agent looks whether a trainer that is silent has ended.
constexpr auto kSilentPause = std::chrono::seconds(10);

AgentMessage CopyOf(const AgentMessage& message) {
  AgentMessage copy{message.verb, message.ticket, message.payload, {}};
  for (const FileDescriptor& fd : message.fds) {
    copy.fds.emplace_back(::dup(fd.get()));
  }
  return copy;
}

class PipeEnd final : public AgentLink {
 public:
  PipeEnd(std::shared_ptr<Pipe> pipe, bool of_agent)
      : pipe_(std::move(pipe)), of_agent_(of_agent) {}

  Status Send(const AgentMessage& message) override {
    // The caller may hold a lock: no other actor may go on here.
    if (pipe_->closed()) {
      return Unavailable("the connection has ended");
    }
    pipe_->Put(of_agent_, message);
    return Status::Ok();
  }
  Result<AgentMessage> Receive(Deadline deadline) override {
    const auto ready = [&] { return pipe_->Has(of_agent_) || pipe_->closed(); };
    if (!ready()) {
      (void)pipe_->scheduler().WaitFor(deadline, ready);
    }
    if (pipe_->Has(of_agent_)) {
      return pipe_->Take(of_agent_);
    }
    return Unavailable(pipe_->closed() || !IsSimulated() ? "the connection has ended"
                                                         : "no answer before the deadline");
  }
  [[nodiscard]] bool IsOpen() const override { return !pipe_->closed(); }
  void Close() override { pipe_->Close(); }

 private:
  const std::shared_ptr<Pipe> pipe_;
  const bool of_agent_;
};

}  // namespace

std::shared_ptr<AgentLink> Pipe::End(const std::shared_ptr<Pipe>& pipe, bool of_agent) {
  return std::make_shared<PipeEnd>(pipe, of_agent);
}

void Pipe::Put(bool by_agent, const AgentMessage& message) {
  const std::scoped_lock lock(mutex_);
  if (messages_left_-- == 0) {
    closed_ = true;
    was_cut_ = true;
    return;
  }
  AgentMessage sent = CopyOf(message);
  if (message.verb == AgentVerb::kSubmit && plant_ == Plant::kLeaseNotSeen) {
    SpoilLease(&sent);
  }
  if (message.verb == AgentVerb::kSubmit && plant_ == Plant::kRanksDoNotMeet) {
    SpoilGroup(&sent);
  }
  inbox_[by_agent ? 0 : 1].push_back(std::move(sent));
}

void Pipe::SpoilLease(AgentMessage* submit) {
  auto page = ValidityPage::Make();
  if (page.ok()) {
    submit->fds[1] = FileDescriptor(::dup((*page)->fd().get()));
    pages_.push_back(std::move(*page));
  }
}

void Pipe::SpoilGroup(AgentMessage* submit) {
  constexpr std::uint64_t kAnyBlocks = 1024;
  const auto encoded = ReadBlob(submit->fds[0]);
  auto save =
      encoded.ok() ? DecodeSubmission(*encoded, kAnyBlocks) : Result<Submission>(encoded.status());
  if (!save.ok() || !save->deferred) {
    return;
  }
  save->deferred->id.bytes[0] ^= static_cast<std::uint8_t>(save->settled.identity.rank);
  if (auto blob = MakeBlob(EncodeSubmission(*save)); blob.ok()) {
    submit->fds[0] = std::move(*blob);
  }
}

bool Pipe::Has(bool for_agent) const {
  const std::scoped_lock lock(mutex_);
  return !inbox_[for_agent ? 1 : 0].empty();
}

AgentMessage Pipe::Take(bool for_agent) {
  const std::scoped_lock lock(mutex_);
  auto& inbox = inbox_[for_agent ? 1 : 0];
  AgentMessage message = std::move(inbox.front());
  inbox.pop_front();
  return message;
}

Agent::Agent(const Surroundings& around, const std::string& name, Fate fate,
             std::chrono::milliseconds peer_timeout)
    : options_{.peer_timeout = peer_timeout}, process_(around, name, std::move(fate)) {
  process_.SetNumber(around.scheduler->Add(name, [this] { Live(); }));
  process_.AtDeath([this] {
    for (const PipePeer& peer : peers_) {
      peer.pipe->Close();
    }
  });
}

void Agent::Accept(std::shared_ptr<Pipe> pipe, std::function<bool()> has_exited) {
  PipePeer& peer = peers_.emplace_back();
  peer.connection = Pipe::End(pipe, /*of_agent=*/true);
  peer.pipe = std::move(pipe);
  peer.has_exited = std::move(has_exited);
}

bool Agent::HasWork() {
  return woken_ || std::any_of(peers_.begin(), peers_.end(), [](const PipePeer& peer) {
           return (!peer.silent && (peer.pipe->Has(true) || peer.pipe->closed())) ||
                  peer.has_exited();
         });
}

void Agent::Live() {
  requests_ =
      std::make_unique<AgentRequests>(options_, process_.storage(), [this] { woken_ = true; });
  Scheduler& scheduler = process_.scheduler();
  while (true) {
    const bool silent =
        std::any_of(peers_.begin(), peers_.end(), [](const PipePeer& peer) { return peer.silent; });
    const TimePoint deadline = silent ? scheduler.Now() + kSilentPause : TimePoint::max();
    const auto done = [&] { return may_end_ && peers_.empty() && requests_->pending() == 0; };
    (void)scheduler.WaitFor(deadline, [&] { return HasWork() || done(); });
    if (scheduler.aborted() || !IsSimulated()) {
      break;
    }
    woken_ = false;
    for (PipePeer& peer : peers_) {
      Handle(peer);
    }
    for (PipePeer& peer : peers_) {
      if (peer.ended) {
        requests_->EndOf(peer);
      }
    }
    std::erase_if(peers_, [](const PipePeer& peer) { return peer.ended; });
    requests_->RemoveEnded();
    if (done()) {
      break;
    }
  }
  peers_.clear();
  requests_->End();
  requests_.reset();
  ended_ = true;
}

void Agent::Handle(PipePeer& peer) {
  process_.Point("looks at " + std::to_string(peers_.size()) + " trainers");
  if (!peer.silent && (peer.pipe->Has(true) || peer.pipe->closed())) {
    auto message = peer.connection->Receive(process_.scheduler().Now());
    if (message.ok()) {
      requests_->Handle(peer, std::move(*message));
    } else {
      requests_->Drop(peer);
    }
  }
  if (peer.has_exited()) {
    peer.ended = peer.ended || peer.silent || !peer.pipe->Has(true);
  }
  if (!peer.ended && peer.silent && peer.session->LeaveIfSilentForLong()) {
    peer.ended = true;
    peer.dropped = true;
  }
}

}  // namespace varve::sim
