// A coordinated save: two exchanges, whatever the number of ranks.
//   A. Every rank contributes its local plan. The coordinator settles who writes what, claims the
//      name and makes the staging directory (commit.cc, steps 0-4); each rank learns its part.
//   B. Every rank writes and syncs its data file, then contributes its checksums. The coordinator
//      merges them into the manifest and publishes (commit.cc, steps 6-11); all learn the outcome.
// A rank that fails in between contributes its error: all ranks return it, and the staging
// directory goes. A rank that dies is named by the exchange it does not answer.

#include <chrono>
#include <cstddef>
#include <thread>

#include "base/bytes.h"
#include "checkpoint/commit.h"
#include "checkpoint/data_writer.h"
#include "checkpoint/names.h"
#include "checkpoint/save_dcp.h"
#include "checkpoint/save_local.h"
#include "format/manifest.h"

namespace varve {
namespace {

using Clock = std::chrono::steady_clock;

/// On network file systems another node's new directory may take a while to be seen.
constexpr auto kVisibilityWait = std::chrono::seconds(10);
constexpr auto kVisibilityPoll = std::chrono::milliseconds(20);

Status CheckOptions(const SaveOptions& options, const std::string& path) {
  if (path.empty()) {
    return InvalidArgument("the path is empty");
  }
  if (options.format != Format::kVarve && options.format != Format::kDcp) {
    return InvalidArgument("saves are written as varve or dcp, not as " +
                           std::string(FormatName(options.format)));
  }
  if (options.format == Format::kDcp && !options.coordinate) {
    return InvalidArgument("a save without coordination is written in the native format only");
  }
  if (options.block_bytes == 0 || options.block_bytes % kDataAlignment != 0 ||
      options.block_bytes > kMaxBlockBytes) {
    return InvalidArgument("block_bytes must be a multiple of 4096 up to 8 MiB, not " +
                           std::to_string(options.block_bytes));
  }
  return Status::Ok();
}

/// What a rank has written, and what it tells the coordinator of it.
struct Share {
  Bytes receipt;
  std::uint64_t bytes = 0;
  bool direct = false;
};

/// What the coordinator holds between the two exchanges.
struct Settled {
  std::vector<LocalPlan> plans;
  SettledPlan plan;
  std::unique_ptr<Commit> commit;
  bool published = false;
};

class CoordinatedSave {
 public:
  CoordinatedSave(const State& state, const std::string& path, const SaveOptions& options,
                  Coordinator& coordinator)
      : state_(state),
        path_(path),
        options_(options),
        coordinator_(coordinator),
        storage_(options.storage != nullptr ? *options.storage : PosixStorage()) {}

  Result<SaveReport> Run() {
    const auto start = Clock::now();
    VARVE_RETURN_IF_ERROR(ExchangePlans());
    auto written = Write();
    VARVE_RETURN_IF_ERROR(ExchangeReceipts(written));
    SaveReport report;
    report.save_id = identity_.save_id;
    report.bytes_written = written->bytes;
    report.direct = written->direct;
    report.differing_objects = settled_.plan.differing_objects;
    report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return report;
  }

 private:
  [[nodiscard]] Deadline NextDeadline() const { return Clock::now() + options_.timeout; }
  [[nodiscard]] std::string What() const { return "save " + path_; }

  Status ExchangePlans() {
    // Checked here and not before: a rank that returned early would leave the others waiting.
    const Status usable = CheckOptions(options_, path_);
    auto plan = usable.ok() ? MakeLocalPlan(state_) : Result<LocalPlan>(usable);
    Contribution mine = plan.ok() ? Contribution(EncodeLocalPlan(*plan)) : plan.status();
    VARVE_ASSIGN_OR_RETURN(
        const std::string reply,
        Exchange(coordinator_, What(), std::move(mine), NextDeadline(),
                 [&](std::vector<std::string> plans) { return Settle(std::move(plans)); }));
    plan_ = std::move(*plan);
    ByteReader in(reply);
    const std::string_view id = in.Raw(identity_.save_id.bytes.size());
    std::copy(id.begin(), id.end(), identity_.save_id.bytes.begin());
    identity_.created_ns = in.U64();
    identity_.block_bytes = in.U64();
    identity_.rank = static_cast<std::uint32_t>(coordinator_.rank());
    identity_.world_size = static_cast<std::uint32_t>(coordinator_.size());
    const std::string_view assignment = in.String();
    VARVE_RETURN_IF_ERROR(in.Finish());
    VARVE_ASSIGN_OR_RETURN(assignment_, DecodeAssignment(assignment));
    return Status::Ok();
  }

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
    VARVE_ASSIGN_OR_RETURN(settled_.commit,
                           Commit::Begin(storage_, path_, identity_.save_id, options_.overwrite));
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

  Result<Share> Write() {
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
    if (options_.format == Format::kDcp) {
      const std::string path = JoinPath(staging, DcpFileName(identity_.rank));
      VARVE_ASSIGN_OR_RETURN(const WrittenDcpShare written,
                             WriteDcpShare(storage_, path, state_, assignment_, options_));
      return Share{EncodeDcpReceipt(written.receipt), written.receipt.size, written.direct};
    }
    VARVE_ASSIGN_OR_RETURN(FilePlan file, PlanFile(plan_, assignment_, identity_));
    const std::string path = JoinPath(staging, DataFileName(file.header));
    VARVE_ASSIGN_OR_RETURN(
        const WrittenFile written,
        WriteDataFile(storage_, path, state_, std::move(file), assignment_.structure, options_));
    return Share{EncodeReceipt(written.receipt), written.bytes, written.direct};
  }

  Status ExchangeReceipts(const Result<Share>& written) {
    Contribution mine = written.ok() ? Contribution(written->receipt) : written.status();
    const Status outcome =
        Exchange(coordinator_, What(), std::move(mine), NextDeadline(),
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
  Coordinator& coordinator_;
  Storage& storage_;
  LocalPlan plan_;
  FileIdentity identity_;
  RankAssignment assignment_;
  Settled settled_;  // Used on the coordinator alone.
};

}  // namespace

Result<SaveReport> Save(const State& state, const std::string& path, const SaveOptions& options,
                        Coordinator& coordinator) {
  if (!options.coordinate) {
    VARVE_RETURN_IF_ERROR(CheckOptions(options, path));
    return SaveRankLocal(state, path, options, coordinator.rank(), coordinator.size());
  }
  return CoordinatedSave(state, path, options, coordinator).Run();
}

Result<SaveReport> Save(const State& state, const std::string& path, const SaveOptions& options) {
  const auto coordinator = MakeSingleProcessCoordinator();
  return Save(state, path, options, *coordinator);
}

}  // namespace varve
