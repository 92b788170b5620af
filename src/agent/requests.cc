#include "agent/requests.h"

#include <unistd.h>

#include "base/bytes.h"
#include "base/events.h"
#include "base/guarded.h"
#include "varve/metadata.h"

namespace varve {
namespace {

AgentMessage Answer(AgentVerb verb, std::uint64_t ticket = 0, Bytes payload = {}) {
  return {verb, ticket, std::move(payload), {}};
}

AgentMessage Refusal(const Status& status, std::uint64_t ticket = 0) {
  return Answer(AgentVerb::kRefused, ticket, EncodeRefusal(status));
}

}  // namespace

AgentMessage RefusalOfAgent(const Status& reason) {
  return Refusal(CopyOf(reason).Annotate("the agent, process " + std::to_string(::getpid())),
                 kNoTicket);
}

std::size_t AgentRequests::pending() const {
  std::size_t pending = 0;
  for (const auto& session : sessions_) {
    pending += session->pending();
  }
  return pending;
}

void AgentRequests::EndOf(Peer& peer) {
  if (peer.session == nullptr) {
    return;
  }
  if (!peer.dropped) {
    // Where the agent cannot see the process, the end of the connection need not be the process's
    // end.
    peer.session->TrainerExited(peer.said_bye || peer.has_exited);
    return;
  }
  peer.session->Abandon();
  peer.connection->Close();  // This is how the peer learns of it.
}

void AgentRequests::RemoveEnded() {
  std::erase_if(sessions_, [](const auto& session) { return session->over(); });
}

void AgentRequests::Drop(Peer& peer) const {
  const bool lives = peer.has_exited && !peer.has_exited();
  if (peer.connection->IsOpen()) {
    peer.ended = true;
    peer.dropped = lives;
    return;
  }
  // A process that is killed closes what it has open before it ends. A process that goes on has
  // lost the connection, uses its memory again and will attach it again: none of that memory may be
  // released.
  if (lives && peer.session != nullptr) {
    peer.session->TrainerIsSilent();
    peer.silent = true;  // A process with much memory, or a device's driver, takes its time to end.
  } else {
    peer.ended = true;
  }
}

void AgentRequests::DropFor(Peer& peer, const Status& reason) const {
  (void)Guarded([&] { return peer.connection->Send(RefusalOfAgent(reason)); });
  Drop(peer);
}

void AgentRequests::Handle(Peer& peer, AgentMessage message) {
  const bool any_version = message.verb == AgentVerb::kHello || message.verb == AgentVerb::kDrain ||
                           message.verb == AgentVerb::kStop;
  if (!peer.greeted && !any_version) {
    Drop(peer);
    return;
  }
  switch (message.verb) {
    case AgentVerb::kHello: Greet(peer, message); return;
    case AgentVerb::kAttach: Reply(peer, 0, Attach(peer, std::move(message))); return;
    case AgentVerb::kFind: SendHeld(peer, message.payload); return;
    case AgentVerb::kStatus: SendStatus(peer); return;
    case AgentVerb::kStop:
      stopping_ = true;
      peer.waits = message.verb;
      return;
    case AgentVerb::kDrain: peer.waits = message.verb; return;
    default: break;
  }
  if (peer.session == nullptr) {
    Drop(peer);
    return;
  }
  switch (message.verb) {
    case AgentVerb::kSubmit: {
      const std::uint64_t ticket = message.ticket;
      Reply(peer, ticket, TakeSave(peer, std::move(message)));
      return;
    }
    case AgentVerb::kPass: peer.session->Pass(message.ticket); return;
    case AgentVerb::kCancel: peer.session->Cancel(message.ticket); return;
    case AgentVerb::kBye:
      peer.said_bye = true;
      peer.ended = true;  // Its children may hold the connection open.
      return;
    case AgentVerb::kForget:
      held_.Forget(peer.session->number(), message.ticket);
      peer.session->Forget(message.ticket);
      (void)peer.connection->Send(Answer(AgentVerb::kForgotten, message.ticket));
      return;
    default: Drop(peer);
  }
}

void AgentRequests::Reply(Peer& peer, std::uint64_t ticket, const Status& status) const {
  const AgentMessage answer =
      status.ok() ? Answer(AgentVerb::kOk, ticket) : Refusal(status, ticket);
  if (!peer.connection->Send(answer).ok()) {
    Drop(peer);
  }
}

void AgentRequests::Greet(Peer& peer, const AgentMessage& message) const {
  if (message.payload != AgentVersion()) {
    Reply(peer, 0,
          FailedPrecondition("the agent that runs is of version " + AgentVersion() + ", not " +
                             message.payload.substr(0, 64) + "; end it with `varve agent stop`"));
    return;
  }
  peer.greeted = true;
  Reply(peer, 0, Status::Ok());
}

Status AgentRequests::Attach(Peer& peer, AgentMessage message) {
  ByteReader in(message.payload);
  const std::uint64_t blocks = in.U64();
  const std::uint64_t first_ticket = in.U64();
  if (!in.Finish().ok() || message.fds.size() != 1 || peer.session != nullptr) {
    return DataLoss("memory that is not attached as it should be");
  }
  if (stopping_) {
    return FailedPrecondition("the agent is stopping");
  }
  VARVE_ASSIGN_OR_RETURN(auto pool, PoolMemory::Map(std::move(message.fds[0]), blocks));
  // A trainer that comes back after its connection was lost uses its memory again.
  for (const auto& session : sessions_) {
    if (session->connection_has_ended() && session->memory().IsSameAs(*pool)) {
      session->Abandon();
    }
  }
  peer.session = std::make_shared<AgentSession>(AgentSession::Surroundings{
      .number = next_session_++,
      .first_ticket = first_ticket,
      .pid = peer.pid,
      .trainer = peer.connection,
      .memory = std::move(pool),
      .held = held_,
      .storage = storage_,
      .peer_timeout = options_.peer_timeout,
      .changed = wake_,
  });
  sessions_.push_back(peer.session);
  ReportEvent([&] {
    return Event{
        .message = "trainer: attached",
        .fields = {{"trainer", std::to_string(peer.pid)}, {"blocks", std::to_string(blocks)}}};
  });
  return Status::Ok();
}

Status AgentRequests::TakeSave(const Peer& peer, AgentMessage message) const {
  if (stopping_) {
    return FailedPrecondition("the agent is stopping");
  }
  if (message.fds.size() != 2) {
    return DataLoss("a save without what there is to know of it");
  }
  VARVE_ASSIGN_OR_RETURN(const Bytes encoded, ReadBlob(message.fds[0]));
  VARVE_ASSIGN_OR_RETURN(auto lease, ValidityPage::Map(std::move(message.fds[1])));
  VARVE_ASSIGN_OR_RETURN(Submission save,
                         DecodeSubmission(encoded, peer.session->memory().blocks()));
  return peer.session->Submit(message.ticket, std::move(save), std::move(lease));
}

void AgentRequests::SendHeld(Peer& peer, const std::string& path) {
  for (const Held& held : held_.Find(path)) {
    auto blob = MakeBlob(EncodeHeldFile(held.file));
    if (!blob.ok()) {
      continue;  // The load reads this file from the disk.
    }
    AgentMessage message{AgentVerb::kHeld, 0, {}, {}};
    message.fds.emplace_back(::dup(held.pool->fd().get()));
    message.fds.push_back(std::move(*blob));
    message.fds.emplace_back(::dup(held.page->fd().get()));
    message.fds.emplace_back(::dup(held.lease->fd().get()));
    if (Status sent = peer.connection->Send(message); !sent.ok()) {
      Drop(peer);
      return;
    }
  }
  Reply(peer, 0, Status::Ok());
}

AgentReport AgentRequests::Report() {
  AgentReport report;
  report.version = Version();
  report.pid = ::getpid();
  report.stopping = stopping_;
  for (const auto& session : sessions_) {
    report.trainers += session->trainer_lives() ? 1 : 0;
    const auto files = session->Files();
    report.saves.insert(report.saves.end(), files.begin(), files.end());
  }
  for (const Held& held : held_.All()) {
    const std::chrono::duration<double> since = Now() - held.since;
    report.held.push_back({held.file.path, held.file.rank, held.file.image.bytes(), "held",
                           since.count(), !held.orphan_since});
  }
  return report;
}

void AgentRequests::SendStatus(Peer& peer) {
  AgentMessage message = Answer(AgentVerb::kOk);
  auto blob = MakeBlob(EncodeAgentReport(Report()));
  if (!blob.ok()) {
    Reply(peer, 0, blob.status());
    return;
  }
  message.fds.push_back(std::move(*blob));
  if (!peer.connection->Send(message).ok()) {
    Drop(peer);
  }
}

}  // namespace varve
