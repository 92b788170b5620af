// A coordinated save: two exchanges, whatever the number of ranks.
//   A. Every rank contributes its local plan. The coordinator settles who writes what, claims the
//      name and makes the staging directory (commit.cc, steps 0-4); each rank learns its part.
//   B. Every rank writes and syncs its data file, then contributes its checksums. The coordinator
//      merges them into the manifest and publishes (commit.cc, steps 6-11); all learn the outcome.
// A rank that fails in between contributes its error: all ranks return it, and the staging
// directory goes. A rank that dies is named by the exchange it does not answer.
//
// An asynchronous save settles with the tensors at hand and claims the name later, in the
// background, in an exchange of its own between A and B. A rank whose copy failed says so there,
// before anything has been written. A save that is repeated begins at that exchange.

#include "checkpoint/save_coordinated.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "checkpoint/commit.h"
#include "checkpoint/data_writer.h"
#include "checkpoint/names.h"
#include "checkpoint/save_dcp.h"
#include "format/manifest.h"

namespace varve {
namespace {

using Clock = std::chrono::steady_clock;

/// On network file systems another node's new directory may take a while to be seen.
constexpr auto kVisibilityWait = std::chrono::seconds(10);
constexpr auto kVisibilityPoll = std::chrono::milliseconds(20);

/// What the coordinator holds between the exchanges.
struct Settled {
  std::vector<LocalPlan> plans;
  SettledPlan plan;
  std::unique_ptr<Commit> commit;
  bool published = false;
};

class CoordinatedSave final : public SaveSession {
 public:
  CoordinatedSave(const State& state, const std::string& path, const SaveOptions& options,
                  Claim claim)
      : state_(state),
        path_(path),
        options_(options),
        claim_(claim),
        storage_(options.storage != nullptr ? *options.storage : PosixStorage()) {}

  Status Plan(Coordinator& coordinator, const Status& ready) override {
    start_ = Clock::now();
    // Checked here and not before: a rank that returned early would leave the others waiting.
    const Status usable = ready.ok() ? CheckSaveOptions(options_, path_) : ready;
    auto plan = usable.ok() ? MakeLocalPlan(state_) : Result<LocalPlan>(usable);
    Contribution mine = plan.ok() ? Contribution(EncodeLocalPlan(*plan)) : plan.status();
    VARVE_ASSIGN_OR_RETURN(
        const std::string reply,
        Exchange(coordinator, What(), std::move(mine), NextDeadline(),
                 [&](std::vector<std::string> plans) { return Settle(std::move(plans)); }));
    plan_ = std::move(*plan);
    ByteReader in(reply);
    const std::string_view id = in.Raw(identity_.save_id.bytes.size());
    std::copy(id.begin(), id.end(), identity_.save_id.bytes.begin());
    identity_.created_ns = in.U64();
    identity_.block_bytes = in.U64();
    identity_.rank = static_cast<std::uint32_t>(coordinator.rank());
    identity_.world_size = static_cast<std::uint32_t>(coordinator.size());
    const std::string_view assignment = in.String();
    VARVE_RETURN_IF_ERROR(in.Finish());
    VARVE_ASSIGN_OR_RETURN(assignment_, DecodeAssignment(assignment));
    prepared_ = Prepare();  // A failure is this rank's alone: Write tells the others.
    return Status::Ok();
  }

  Result<SaveReport> Write(Coordinator& coordinator, StagedFile* staged,
                           const Status& ready) override {
    Status begun = prepared_.ok() ? ready : prepared_;
    if (claim_ == Claim::kApart) {
      begun = ExchangeClaim(coordinator, begun);
      VARVE_RETURN_IF_ERROR(begun);
    }
    const auto written = begun.ok() ? WriteShare(staged) : Result<WrittenShare>(begun);
    Status outcome = ExchangeReceipts(coordinator, written);
    if (!outcome.ok()) {
      settled_.commit.reset();  // Abandons: the name is free, and the next attempt claims it anew.
      return outcome;
    }
    SaveReport report;
    report.save_id = identity_.save_id;
    report.bytes_written = written->bytes;
    report.direct = written->direct;
    report.differing_objects = settled_.plan.differing_objects;
    report.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    return report;
  }

 private:
  [[nodiscard]] Deadline NextDeadline() const { return Clock::now() + options_.timeout; }
  [[nodiscard]] std::string What() const { return "save " + path_; }

  /// On the coordinator, within exchange A.
  Result<std::vector<std::string>> Settle(std::vector<std::string> encoded) {
    for (const std::string& bytes : encoded) {
      VARVE_ASSIGN_OR_RETURN(LocalPlan plan, DecodeLocalPlan(bytes));
      settled_.plans.push_back(std::move(plan));
    }
    encoded.clear();
    VARVE_ASSIGN_OR_RETURN(settled_.plan, varve::Settle(settled_.plans));
    if (options_.save_id) {
      identity_.save_id = *options_.save_id;
    } else {
      VARVE_ASSIGN_OR_RETURN(identity_.save_id, RandomSaveId());
    }
    identity_.created_ns = UnixTimeNs();
    identity_.block_bytes = options_.block_bytes;
    if (claim_ == Claim::kWithPlan) {
      VARVE_RETURN_IF_ERROR(ClaimName());
    }
    std::vector<std::string> replies;
    for (const RankAssignment& assignment : settled_.plan.ranks) {
      Bytes reply;
      ByteWriter out(&reply);
      for (const std::uint8_t byte : identity_.save_id.bytes) {
        out.U8(byte);
      }
      out.U64(identity_.created_ns);
      out.U64(identity_.block_bytes);
      out.String(EncodeAssignment(assignment));
      replies.push_back(std::move(reply));
    }
    return replies;
  }

  Status ClaimName() {
    VARVE_ASSIGN_OR_RETURN(settled_.commit,
                           Commit::Begin(storage_, path_, identity_.save_id, options_.overwrite));
    return Status::Ok();
  }

  Status ExchangeClaim(Coordinator& coordinator, const Status& ready) {
    return Exchange(coordinator, What(),
                    ready.ok() ? Contribution(std::string()) : Contribution(ready), NextDeadline(),
                    [&](const std::vector<std::string>& ranks) -> Result<std::vector<std::string>> {
                      VARVE_RETURN_IF_ERROR(ClaimName());
                      return std::vector<std::string>(ranks.size());
                    })
        .status();
  }

  Status Prepare() {
    if (options_.format == Format::kDcp) {
      file_name_ = DcpFileName(identity_.rank);
      VARVE_ASSIGN_OR_RETURN(work_, PrepareDcpShare(state_, assignment_, options_));
      return Status::Ok();
    }
    VARVE_ASSIGN_OR_RETURN(FilePlan file, PlanFile(plan_, assignment_, identity_));
    file_name_ = DataFileName(file.header);
    VARVE_ASSIGN_OR_RETURN(work_, PrepareDataFile(state_, std::move(file), assignment_.structure));
    return Status::Ok();
  }

  Result<WrittenShare> WriteShare(StagedFile* staged) {
    const std::string staging = StagingPath(path_, identity_.save_id);
    const auto give_up = Clock::now() + kVisibilityWait;
    // Only absence may be a matter of time; any other error is final.
    for (Status seen = storage_.List(staging).status(); !seen.ok();
         seen = storage_.List(staging).status()) {
      if (seen.code() != StatusCode::kNotFound) {
        return seen;
      }
      if (Clock::now() > give_up) {
        return FailedPrecondition("does not see the staging directory " + staging +
                                  " that the coordinator made; all ranks must save to one shared "
                                  "file system");
      }
      std::this_thread::sleep_for(kVisibilityPoll);
    }
    return WriteFileWork(storage_, JoinPath(staging, file_name_), work_, staged, options_);
  }

  Status ExchangeReceipts(Coordinator& coordinator, const Result<WrittenShare>& written) {
    Contribution mine = written.ok() ? Contribution(written->receipt) : written.status();
    const Status outcome =
        Exchange(coordinator, What(), std::move(mine), NextDeadline(),
                 [&](const std::vector<std::string>& receipts) -> Result<std::vector<std::string>> {
                   VARVE_RETURN_IF_ERROR(Publish(receipts));
                   return std::vector<std::string>(receipts.size());
                 })
            .status();
    // Once published the save has succeeded, even if a rank died before it could be told.
    return settled_.published ? Status::Ok() : outcome;
  }

  /// On the coordinator, within exchange B.
  Status Publish(const std::vector<std::string>& receipts) {
    if (options_.format == Format::kDcp) {
      return PublishDcp(receipts);
    }
    std::vector<CheckedHeader> headers;
    for (std::size_t rank = 0; rank < receipts.size(); ++rank) {
      VARVE_ASSIGN_OR_RETURN(const WriteReceipt receipt, DecodeReceipt(receipts[rank]));
      FileIdentity identity = identity_;
      identity.rank = static_cast<std::uint32_t>(rank);
      VARVE_ASSIGN_OR_RETURN(FilePlan file,
                             PlanFile(settled_.plans[rank], settled_.plan.ranks[rank], identity));
      VARVE_RETURN_IF_ERROR(ApplyReceipt(receipt, &file.header));
      headers.push_back({std::move(file.header), receipt.header_bytes, receipt.header_crc32c});
    }
    VARVE_ASSIGN_OR_RETURN(const Metadata metadata, MergeHeaders(std::move(headers)));
    VARVE_RETURN_IF_ERROR(settled_.commit->Publish(metadata));
    settled_.published = true;
    return Status::Ok();
  }

  Status PublishDcp(const std::vector<std::string>& encoded) {
    std::vector<DcpReceipt> receipts;
    for (const std::string& bytes : encoded) {
      VARVE_ASSIGN_OR_RETURN(DcpReceipt receipt, DecodeDcpReceipt(bytes));
      receipts.push_back(std::move(receipt));
    }
    VARVE_ASSIGN_OR_RETURN(
        const DcpIndexFiles made,
        MakeDcpIndex(settled_.plans, settled_.plan.ranks, receipts, options_.block_bytes));
    VARVE_RETURN_IF_ERROR(settled_.commit->Publish(made.files, made.index));
    settled_.published = true;
    return Status::Ok();
  }

  const State& state_;
  const std::string& path_;
  const SaveOptions& options_;
  const Claim claim_;
  Storage& storage_;
  Clock::time_point start_;
  LocalPlan plan_;
  FileIdentity identity_;
  RankAssignment assignment_;
  Status prepared_;  // Of this rank's file; the others hear of it in the next exchange.
  std::string file_name_;
  Settled settled_;  // Used on the coordinator alone.
};

}  // namespace

std::unique_ptr<SaveSession> MakeCoordinatedSave(const State& state, const std::string& path,
                                                 const SaveOptions& options, Claim claim) {
  return std::make_unique<CoordinatedSave>(state, path, options, claim);
}

}  // namespace varve
