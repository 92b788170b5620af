// One exchange between all ranks, in order:
//   1. Every rank sends its contribution, a payload or an error, to the coordinator.
//      A rank that failed takes part like any other: silence would cost its peers the deadline.
//   2. The coordinator receives from each rank, all within one deadline. A rank that is gone or
//      late becomes an error with its number; the coordinator goes on to the next rank, so that
//      all missing ranks are named, not the first alone.
//   3. The coordinator sends each rank its reply, or the one combined error. It does so for ranks
//      it could not hear as well: one that is merely late then learns that the exchange failed.
//   4. Every rank waits for the reply. The coordinator's own death is the one cause a rank finds
//      out by itself.

#include <algorithm>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "varve/coordinator.h"

namespace varve {
namespace {

// A reply may only arrive after the coordinator has waited out the deadline for a third rank.
constexpr auto kReplyGrace = std::chrono::seconds(5);

Bytes EncodeContribution(const Contribution& contribution) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.U8(static_cast<std::uint8_t>(contribution.status().code()));
  out.Raw(contribution.ok() ? *contribution : contribution.status().message());
  return bytes;
}

Contribution DecodeContribution(std::string_view bytes) {
  ByteReader in(bytes);
  const std::uint8_t code = in.U8();
  const std::string_view rest = in.Raw(in.remaining());
  if (in.failed() || code > static_cast<std::uint8_t>(StatusCode::kInternal)) {
    return Internal("malformed message");
  }
  if (code == 0) {
    return std::string(rest);
  }
  return Status(static_cast<StatusCode>(code), std::string(rest));
}

/// All failures in one Status; its code is the first failing rank's.
Status Combine(std::string_view what, const std::vector<Contribution>& contributions) {
  std::string message;
  StatusCode code = StatusCode::kOk;
  std::size_t failed = 0;
  constexpr std::size_t kMaxNamed = 16;
  for (std::size_t rank = 0; rank < contributions.size(); ++rank) {
    if (contributions[rank].ok()) {
      continue;
    }
    const Status& status = contributions[rank].status();
    // A rank that failed tells more than one that then went missing.
    if (code == StatusCode::kOk || code == StatusCode::kUnavailable) {
      code = status.code();
    }
    if (++failed <= kMaxNamed) {
      message += message.empty() ? "" : "; ";
      message += "rank " + std::to_string(rank) + ": " + status.message();
    }
  }
  if (failed == 0) {
    return Status::Ok();
  }
  if (failed > kMaxNamed) {
    message += "; and " + std::to_string(failed - kMaxNamed) + " more ranks";
  }
  return Status(code, message).Annotate(what);
}

Result<std::string> Coordinate(
    Coordinator& coordinator, std::string_view what, Contribution mine, Deadline deadline,
    const std::function<Result<std::vector<std::string>>(std::vector<std::string>)>& combine) {
  const auto size = static_cast<std::size_t>(coordinator.size());
  std::vector<Contribution> contributions;
  contributions.reserve(size);
  contributions.push_back(std::move(mine));
  for (std::size_t rank = 1; rank < size; ++rank) {
    auto message = coordinator.Receive(static_cast<int>(rank), deadline);
    contributions.push_back(message.ok() ? DecodeContribution(*message)
                                         : Contribution(message.status()));
  }
  Result<std::vector<std::string>> replies = std::vector<std::string>();
  if (Status failure = Combine(what, contributions); !failure.ok()) {
    replies = std::move(failure);
  } else {
    std::vector<std::string> payloads;
    payloads.reserve(size);
    for (Contribution& contribution : contributions) {
      payloads.push_back(std::move(contribution).value());
    }
    replies = combine(std::move(payloads));
    if (replies.ok() && replies->size() != size) {
      replies = Internal("combine gave " + std::to_string(replies->size()) + " replies for " +
                         std::to_string(size) + " ranks");
    }
    if (!replies.ok()) {
      replies = replies.status().Annotate(what);
    }
  }
  const Deadline reply_deadline =
      std::max(deadline, std::chrono::steady_clock::now() + kReplyGrace);
  Status sent;
  for (std::size_t rank = 1; rank < size; ++rank) {
    const Contribution reply =
        replies.ok() ? Contribution((*replies)[rank]) : Contribution(replies.status());
    const Status status =
        coordinator.Send(static_cast<int>(rank), EncodeContribution(reply), reply_deadline);
    if (!status.ok() && sent.ok() && replies.ok()) {
      sent = status.Annotate("rank " + std::to_string(rank)).Annotate(what);
    }
  }
  VARVE_RETURN_IF_ERROR(replies.status());
  VARVE_RETURN_IF_ERROR(sent);
  return std::move((*replies)[0]);
}

}  // namespace

Result<std::string> Exchange(
    Coordinator& coordinator, std::string_view what, Contribution mine, Deadline deadline,
    const std::function<Result<std::vector<std::string>>(std::vector<std::string>)>& combine) {
  if (coordinator.is_coordinator()) {
    return Coordinate(coordinator, what, std::move(mine), deadline, combine);
  }
  const auto lost = [&](const Status& status) {
    return Unavailable(status.message()).Annotate("rank 0 (coordinator)").Annotate(what);
  };
  if (Status status = coordinator.Send(0, EncodeContribution(mine), deadline); !status.ok()) {
    return mine.ok() ? lost(status) : mine.status().Annotate(what);
  }
  auto reply = coordinator.Receive(0, deadline + 2 * kReplyGrace);
  if (!reply.ok()) {
    // The own failure is the better story when both happened.
    return mine.ok() ? lost(reply.status()) : mine.status().Annotate(what);
  }
  return DecodeContribution(*reply);
}

Status Agree(Coordinator& coordinator, std::string_view what, const Status& mine,
             Deadline deadline) {
  return Exchange(coordinator, what, mine.ok() ? Contribution(std::string()) : Contribution(mine),
                  deadline,
                  [](const std::vector<std::string>& payloads) -> Result<std::vector<std::string>> {
                    return std::vector<std::string>(payloads.size());
                  })
      .status();
}

}  // namespace varve
