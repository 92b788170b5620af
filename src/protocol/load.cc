// A load through hooks. The numbers are those of varve/protocol/storage_layer.h.

#include <chrono>
#include <cstddef>
#include <utility>

#include "base/bytes.h"
#include "base/checksum.h"
#include "protocol/coordinator_rank.h"
#include "protocol/hook.h"
#include "varve/protocol/checkpoint.h"

namespace varve::protocol {
namespace {

using Replies = Result<std::vector<std::string>>;

constexpr std::size_t kDigestBytes = sizeof(Hash128::bytes);

/// Returns a digest by which ranks check that they load the same checkpoint. Storage data may
/// differ, and do not count.
std::string Digest(const StateMetadata& metadata) {
  StateMetadata common;
  common.state_dict_metadata = metadata.state_dict_metadata;
  common.planner_data = metadata.planner_data;
  const Hash128 hash = Xxh3(AsByteSpan(EncodeMetadata(common)));
  return std::string(AsText(std::as_bytes(std::span(hash.bytes))));
}

class LoadRun {
 public:
  LoadRun(TargetState& state, StorageReader& reader, LoadPlanner& planner, Coordinator& coordinator,
          const CallOptions& options)
      : state_(state),
        reader_(reader),
        planner_(planner),
        coordinator_(coordinator),
        options_(options),
        what_(options.checkpoint_id ? "load \"" + *options.checkpoint_id + "\"" : "load") {}

  Status Run() {
    VARVE_RETURN_IF_ERROR(CheckCoordinatorRank(coordinator_, options_, what_));
    if (!options_.use_collectives) {
      return InvalidArgument(
                 "use_collectives is false: only saves can do without; to load on one rank alone, "
                 "give a coordinator of one process")
          .Annotate(what_);
    }
    Result<std::string> mine = LocalPlan();
    VARVE_ASSIGN_OR_RETURN(
        const std::string plan,
        Exchange(
            coordinator_, what_, std::move(mine), Later(),
            [this](const auto& all) { return GlobalPlan(all); }, options_.coordinator_rank));
    return Agree(coordinator_, what_, Read(plan), Later(), options_.coordinator_rank);
  }

 private:
  [[nodiscard]] Deadline Later() const {
    return std::chrono::steady_clock::now() + options_.timeout;
  }

  /// Makes steps 1 to 5.
  Result<std::string> LocalPlan() {
    if (options_.checkpoint_id) {
      VARVE_RETURN_IF_ERROR(CallHook("StorageReader::Reset",
                                     [this] { return reader_.Reset(*options_.checkpoint_id); }));
    }
    const bool is_coordinator = coordinator_.rank() == options_.coordinator_rank;
    VARVE_ASSIGN_OR_RETURN(metadata_, CallHook("StorageReader::ReadMetadata",
                                               [this] { return reader_.ReadMetadata(); }));
    VARVE_RETURN_IF_ERROR(CheckMetadata(metadata_).Annotate("StorageReader::ReadMetadata"));
    VARVE_RETURN_IF_ERROR(CallHook("LoadPlanner::SetUpPlanner", [&] {
      return planner_.SetUpPlanner(state_, metadata_, is_coordinator);
    }));
    VARVE_RETURN_IF_ERROR(CallHook("StorageReader::SetUpStorageReader", [&] {
      return reader_.SetUpStorageReader(metadata_, is_coordinator);
    }));
    VARVE_ASSIGN_OR_RETURN(LoadPlan plan, CallHook("LoadPlanner::CreateLocalPlan",
                                                   [this] { return planner_.CreateLocalPlan(); }));
    VARVE_ASSIGN_OR_RETURN(plan, CallHook("StorageReader::PrepareLocalPlan", [&] {
                             return reader_.PrepareLocalPlan(std::move(plan));
                           }));
    return Digest(metadata_) + EncodeLoadPlan(plan);
  }

  /// Makes step 6, on the coordinator.
  Replies GlobalPlan(const std::vector<std::string>& encoded) {
    std::vector<LoadPlan> plans;
    for (std::size_t rank = 0; rank < encoded.size(); ++rank) {
      const std::string_view one = encoded[rank];
      if (one.substr(0, kDigestBytes) != encoded[0].substr(0, kDigestBytes)) {
        return FailedPrecondition("rank " + std::to_string(rank) +
                                  " sees another checkpoint than rank 0; all ranks must load from "
                                  "one shared storage");
      }
      VARVE_ASSIGN_OR_RETURN(plans.emplace_back(), DecodeLoadPlan(one.substr(kDigestBytes)));
    }
    return MakeGlobalPlan(std::move(plans)).Annotate("rank " + std::to_string(coordinator_.rank()));
  }

  Replies MakeGlobalPlan(std::vector<LoadPlan> plans) {
    VARVE_ASSIGN_OR_RETURN(plans, CallHook("LoadPlanner::CreateGlobalPlan", [&] {
                             return planner_.CreateGlobalPlan(std::move(plans));
                           }));
    VARVE_ASSIGN_OR_RETURN(plans, CallHook("StorageReader::PrepareGlobalPlan", [&] {
                             return reader_.PrepareGlobalPlan(std::move(plans));
                           }));
    std::vector<std::string> replies;
    replies.reserve(plans.size());
    for (const LoadPlan& plan : plans) {
      replies.push_back(EncodeLoadPlan(plan));
    }
    return replies;
  }

  /// Makes steps 7 and 8.
  Status Read(const std::string& encoded) {
    VARVE_ASSIGN_OR_RETURN(LoadPlan plan, DecodeLoadPlan(encoded));
    VARVE_ASSIGN_OR_RETURN(plan, CallHook("LoadPlanner::FinishPlan",
                                          [&] { return planner_.FinishPlan(std::move(plan)); }));
    return CallHook("StorageReader::ReadData", [&] { return reader_.ReadData(plan, planner_); });
  }

  TargetState& state_;
  StorageReader& reader_;
  LoadPlanner& planner_;
  Coordinator& coordinator_;
  const CallOptions& options_;
  const std::string what_;
  StateMetadata metadata_;
};

}  // namespace

Status Load(TargetState& state, StorageReader& reader, LoadPlanner& planner,
            Coordinator& coordinator, const CallOptions& options) {
  return LoadRun(state, reader, planner, coordinator, options).Run();
}

Status Load(TargetState& state, StorageReader& reader, const CallOptions& options) {
  const auto coordinator = MakeSingleProcessCoordinator();
  DefaultLoadPlanner planner;
  return Load(state, reader, planner, *coordinator, options);
}

}  // namespace varve::protocol
