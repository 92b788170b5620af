// One exchange between all ranks, in order:
//   1. Every rank sends its contribution, a payload or an error, to the coordinator.
//      A rank that failed takes part like any other: silence would cost its peers the deadline.
//   2. The coordinator receives from each rank, all within one deadline. A rank that is lost or
//      late becomes an error with its number; the coordinator goes on to the next rank, so that all
//      missing ranks are named, not the first alone.
//   3. The coordinator sends each rank its reply, or the one combined error. It does so also for
//      ranks from which it received nothing: one that is merely late then learns that the exchange
//      failed.
//   4. Every rank waits for the reply. The coordinator's own death is the one cause a rank finds
//      out by itself.
// A rank that runs out of memory still takes part. It tries a message that it cannot send once
// more; then it sends an error instead, which needs next to no memory. The coordinator still takes
// a message that it has no memory for, so that the next exchange does not find it.
//
// A rank that has lost a message, or given up waiting for one, is out of step: what comes next may
// belong to the exchange that it has given up. It takes no message from then on, and brings an
// error to each of its exchanges, so that the others need not wait for it. Otherwise a rank that
// stood still for longer than the deadline would take what another brings to the next save for its
// part in this one, and a checkpoint of two saves would become visible (seed 19925 of the
// simulator).

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/error_codec.h"
#include "base/guarded.h"
#include "base/name_list.h"
#include "base/time_source.h"
#include "coordinate/known_parts.h"
#include "varve/coordinator.h"

namespace varve {
namespace {

// A reply may only arrive after the coordinator has waited out the deadline for a third rank.
constexpr auto kReplyGrace = std::chrono::seconds(5);

Bytes EncodeContribution(const Contribution& contribution) {
  Bytes bytes;
  ByteWriter out(&bytes);
  if (contribution.ok()) {
    out.U8(static_cast<std::uint8_t>(StatusCode::kOk));
    out.Raw(*contribution);
  } else {
    EncodeError(contribution.status(), &out);
  }
  return bytes;
}

Contribution DecodeContribution(Bytes bytes) {
  if (!bytes.empty() && bytes.front() == static_cast<char>(StatusCode::kOk)) {
    bytes.erase(0, 1);  // In place: a reply must not be lost for want of memory for a second one.
    return bytes;
  }
  auto error = DecodeError(std::move(bytes));
  return error ? std::move(*error) : Internal("malformed message");
}

/// Sends a contribution, or OutOfSpace where there is no memory for it.
Status SendContribution(Coordinator& coordinator, int to, const Contribution& contribution,
                        Deadline deadline) {
  Status sent;
  for (int attempt = 0; attempt < 2; ++attempt) {
    sent =
        Guarded([&] { return coordinator.Send(to, EncodeContribution(contribution), deadline); });
    if (sent.code() != StatusCode::kOutOfSpace) {
      return sent;
    }
  }
  return Guarded([&] {
    // Fits a string that takes no memory.
    return coordinator.Send(to, EncodeContribution(Status(sent.code(), "out of memory")), deadline);
  });
}

/// Returns `deadline` + `more`, or no deadline at all.
Deadline Later(Deadline deadline, Deadline::duration more) {
  return deadline > Deadline::max() - more ? Deadline::max() : deadline + more;
}

/// Receives a message. A rank that gets none is out of step.
Result<Bytes> Take(Coordinator& coordinator, int from, Deadline deadline) {
  Result<Bytes> message = Guarded([&] { return coordinator.Receive(from, deadline); });
  if (message.status().code() == StatusCode::kUnavailable) {
    coordinator.MarkOutOfStep();
  }
  return message;
}

Contribution ReceiveContribution(Coordinator& coordinator, int from, Deadline deadline) {
  return Guarded([&]() -> Contribution {
    VARVE_ASSIGN_OR_RETURN(Bytes message, Take(coordinator, from, deadline));
    return DecodeContribution(std::move(message));
  });
}

/// Adds what a rank failed with. An error of several ranks, which it learned from an exchange
/// before, is added as theirs.
void AddFailures(int rank, const Status& status, std::vector<RankFailure>* failures) {
  constexpr std::size_t kMaxFailures = 64;  // Every rank receives them.
  const ErrorDetails& details = status.details();
  std::vector<RankFailure> added = details.failures;
  if (added.empty()) {
    added.push_back({details.rank < 0 ? rank : details.rank, status.code(), status.message(),
                     details.path, details.system_error});
  }
  for (RankFailure& failure : added) {
    const auto is_known = [&](const RankFailure& known) { return known.rank == failure.rank; };
    if (failures->size() < kMaxFailures &&
        std::none_of(failures->begin(), failures->end(), is_known)) {
      failures->push_back(std::move(failure));
    }
  }
}

/// Returns whether a rank failed because of another one that failed by itself: it was not waited
/// for. The error of that one tells all.
bool FailedByAnother(const std::vector<Contribution>& contributions, std::size_t rank) {
  const auto cause_of = [&](std::size_t failed) {
    const ErrorDetails& details = contributions[failed].status().details();
    // What an exchange before this one has put together says more than its first cause.
    const bool by_one = details.rank >= 0 && details.failures.empty();
    return by_one ? static_cast<std::size_t>(details.rank) : failed;
  };
  const std::size_t cause = cause_of(rank);
  return cause != rank && cause < contributions.size() && !contributions[cause].ok() &&
         cause_of(cause) == cause;
}

/// Collects what failed ranks say. Ranks that say the same are named together: a thousand ranks
/// that find no checkpoint say so once.
class FailureText {
 public:
  void Add(int rank, const std::string& said) {
    const auto known = std::find_if(said_.begin(), said_.end(),
                                    [&](const auto& entry) { return entry.first == said; });
    if (known != said_.end()) {
      known->second.push_back(rank);
    } else if (said_.size() < kMaxNamed) {
      said_.push_back({said, {rank}});
    } else {
      ++more_;
    }
  }
  [[nodiscard]] std::string Text() const {
    std::string text;
    for (const auto& [said, ranks] : said_) {
      text += text.empty() ? "" : "; ";
      text += ranks.size() > 1 ? "each of " : "";
      text += NameRanks(ranks) + ": " + said;
    }
    return text + (more_ == 0 ? "" : "; and " + std::to_string(more_) + " more ranks");
  }

 private:
  static constexpr std::size_t kMaxNamed = 16;
  std::vector<std::pair<std::string, std::vector<int>>> said_;  // By their first ranks.
  std::size_t more_ = 0;
};

/// Returns all failures in one Status; its code and details are the first failing rank's.
Status Combine(std::string_view what, const std::vector<Contribution>& contributions) {
  FailureText text;
  StatusCode code = StatusCode::kOk;
  ErrorDetails details;
  ErrorReason reason = ErrorReason::kNone;
  std::vector<RankFailure> failures;
  for (std::size_t rank = 0; rank < contributions.size(); ++rank) {
    if (contributions[rank].ok()) {
      continue;
    }
    const Status& status = contributions[rank].status();
    // A failed rank's error says more than that of a rank that was then lost.
    if (code == StatusCode::kOk || code == StatusCode::kUnavailable) {
      if (code == StatusCode::kOk || status.code() != StatusCode::kUnavailable) {
        details = status.details();
        details.rank = details.rank < 0 ? static_cast<int>(rank) : details.rank;
      }
      code = status.code();
    }
    reason = std::max(reason, status.details().reason);  // Any rank's reason.
    if (FailedByAnother(contributions, rank)) {
      continue;
    }
    AddFailures(static_cast<int>(rank), status, &failures);
    text.Add(static_cast<int>(rank), status.message());
  }
  if (failures.empty()) {
    return Status::Ok();
  }
  details.reason = reason;
  std::sort(failures.begin(), failures.end(),
            [](const RankFailure& a, const RankFailure& b) { return a.rank < b.rank; });
  details.failures = std::move(failures);
  return Status(code, text.Text()).With(std::move(details)).Annotate(what);
}

using Replies = std::vector<std::string>;
using CombineFunction = std::function<Result<Replies>(std::vector<std::string>)>;

/// Receives from every rank once, also where there is no memory for the message.
Result<std::vector<Contribution>> TakeAll(Coordinator& coordinator, Contribution mine,
                                          Deadline deadline) {
  const auto size = static_cast<std::size_t>(coordinator.size());
  std::vector<Contribution> contributions;
  Status room = Guarded([&] { contributions.reserve(size); });
  for (int rank = 0; rank < coordinator.size(); ++rank) {
    Contribution contribution = std::string();  // This rank's stands there below.
    if (rank != coordinator.rank()) {
      contribution = ReceiveContribution(coordinator, rank, deadline);
    }
    if (room.ok()) {
      contributions.push_back(std::move(contribution));
    }
  }
  VARVE_RETURN_IF_ERROR(room);
  contributions[static_cast<std::size_t>(coordinator.rank())] = std::move(mine);
  return contributions;
}

/// Makes one reply for each rank, or the error that all of them return.
Result<Replies> ReplyTo(Result<std::vector<Contribution>> gathered, std::string_view what,
                        const CombineFunction& combine) {
  VARVE_ASSIGN_OR_RETURN(std::vector<Contribution> contributions,
                         std::move(gathered).Annotate(what));
  const std::size_t size = contributions.size();
  VARVE_RETURN_IF_ERROR(Combine(what, contributions));
  std::vector<std::string> payloads;
  payloads.reserve(size);
  for (Contribution& contribution : contributions) {
    payloads.push_back(std::move(contribution).value());
  }
  Result<Replies> replies = Guarded([&] { return combine(std::move(payloads)); });
  if (replies.ok() && replies->size() != size) {
    replies = Internal("combine gave " + std::to_string(replies->size()) + " replies for " +
                       std::to_string(size) + " ranks");
  }
  return std::move(replies).Annotate(what);
}

Result<std::string> Coordinate(Coordinator& coordinator, std::string_view what, Contribution mine,
                               Deadline deadline, const CombineFunction& combine) {
  auto gathered = TakeAll(coordinator, std::move(mine), deadline);
  Result<Replies> replies = Guarded([&] { return ReplyTo(std::move(gathered), what, combine); });
  const Deadline reply_deadline = std::max(deadline, Now() + kReplyGrace);
  Status sent;
  coordinator.HoldSent();
  for (int rank = 0; rank < coordinator.size(); ++rank) {
    if (rank == coordinator.rank()) {
      continue;
    }
    // Moved, not copied: each reply is used once.
    const Contribution reply =
        replies.ok() ? Contribution(std::move((*replies)[static_cast<std::size_t>(rank)]))
                     : Contribution(CopyOf(replies.status()));
    Status status = SendContribution(coordinator, rank, reply, reply_deadline);
    if (!status.ok() && sent.ok() && replies.ok()) {
      sent = Guarded([&] {
        return status.With({.rank = rank}).Annotate("rank " + std::to_string(rank)).Annotate(what);
      });
    }
  }
  coordinator.SendHeld(reply_deadline);
  VARVE_RETURN_IF_ERROR(replies.status());
  VARVE_RETURN_IF_ERROR(sent);
  return std::move((*replies)[static_cast<std::size_t>(coordinator.rank())]);
}

/// Takes part as a rank other than the coordinator.
Result<std::string> TakePart(Coordinator& coordinator, int coordinator_rank, std::string_view what,
                             const Contribution& mine, Deadline deadline) {
  const auto lost = [&](const Status& status) {
    const int cause = status.details().rank;  // Such as of a rank that passes messages on.
    const bool is_other = cause >= 0 && cause != coordinator.rank();
    return Unavailable(status.message())
        .With({.rank = is_other ? cause : coordinator_rank})
        .Annotate("rank " + std::to_string(coordinator_rank) + " (coordinator)")
        .Annotate(what);
  };
  if (Status status = SendContribution(coordinator, coordinator_rank, mine, deadline);
      !status.ok()) {
    coordinator.MarkOutOfStep();
    return mine.ok() ? lost(status) : mine.status().Annotate(what);
  }
  auto reply = Take(coordinator, coordinator_rank, Later(deadline, 2 * kReplyGrace));
  if (!reply.ok()) {
    // This rank's own error says more when both happened.
    return mine.ok() ? lost(reply.status()) : mine.status().Annotate(what);
  }
  return DecodeContribution(std::move(*reply));
}

/// Takes part as a rank that is out of step: tells the others so, and takes no message.
Status RefuseToTakePart(Coordinator& coordinator, int coordinator_rank, std::string_view what,
                        Deadline deadline) {
  const Contribution error = Unavailable(
      "out of step with the other ranks since a message was lost or given up; make another "
      "coordinator");
  for (int rank = 0; rank < coordinator.size(); ++rank) {
    const bool is_told = coordinator.rank() == coordinator_rank ? rank != coordinator_rank
                                                                : rank == coordinator_rank;
    if (is_told) {
      (void)SendContribution(coordinator, rank, error, deadline);
    }
  }
  return error.status().Annotate(what);
}

}  // namespace

Result<std::string> Exchange(
    Coordinator& coordinator, std::string_view what, Contribution mine, Deadline deadline,
    const std::function<Result<std::vector<std::string>>(std::vector<std::string>)>& combine,
    int coordinator_rank) {
  return Guarded([&]() -> Result<std::string> {
    if (coordinator.out_of_step()) {
      return RefuseToTakePart(coordinator, coordinator_rank, what, deadline);
    }
    return coordinator.rank() == coordinator_rank
               ? Coordinate(coordinator, what, std::move(mine), deadline, combine)
               : TakePart(coordinator, coordinator_rank, what, mine, deadline);
  });
}

Status Agree(Coordinator& coordinator, std::string_view what, const Status& mine, Deadline deadline,
             int coordinator_rank) {
  return Exchange(
             coordinator, what,
             mine.ok() ? Contribution(std::string()) : Contribution(CopyOf(mine)), deadline,
             [](const std::vector<std::string>& payloads) -> Result<std::vector<std::string>> {
               return std::vector<std::string>(payloads.size());
             },
             coordinator_rank)
      .status();
}

Result<std::vector<std::string>> Gather(Coordinator& coordinator, std::string_view what,
                                        std::string mine, Deadline deadline) {
  VARVE_ASSIGN_OR_RETURN(
      const std::string all,
      Exchange(coordinator, what, std::move(mine), deadline,
               [](const std::vector<std::string>& given) -> Result<std::vector<std::string>> {
                 Bytes bytes;
                 ByteWriter(&bytes).StringList(given);
                 return std::vector<std::string>(given.size(), bytes);
               }));
  ByteReader in(all);
  std::vector<std::string> gathered;
  in.StringList(&gathered);
  VARVE_RETURN_IF_ERROR(in.Finish());
  return gathered;
}

Coordinator::Coordinator() : known_parts_(std::make_shared<KnownParts>()) {}

std::unique_ptr<Coordinator> MakeInStep(std::shared_ptr<Coordinator> ranks) {
  class Forwarding final : public Coordinator {
   public:
    explicit Forwarding(std::shared_ptr<Coordinator> to)
        : Coordinator(KnownBy(*to)), to_(std::move(to)) {}
    [[nodiscard]] int rank() const override { return to_->rank(); }
    [[nodiscard]] int size() const override { return to_->size(); }
    Status Send(int to, std::string_view message, Deadline deadline) override {
      return to_->Send(to, message, deadline);
    }
    Result<std::string> Receive(int from, Deadline deadline) override {
      return to_->Receive(from, deadline);
    }
    void HoldSent() override { to_->HoldSent(); }
    void SendHeld(Deadline deadline) override { to_->SendHeld(deadline); }

   private:
    std::shared_ptr<Coordinator> to_;
  };
  return std::make_unique<Forwarding>(std::move(ranks));
}

}  // namespace varve
