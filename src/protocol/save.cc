// A save through hooks. The numbers are those of varve/protocol/storage_layer.h.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "protocol/coordinator_rank.h"
#include "protocol/hook.h"
#include "varve/protocol/checkpoint.h"

namespace varve::protocol {
namespace {

using Replies = Result<std::vector<std::string>>;

/// Checks that every item has one result: a writer that loses one would make a checkpoint with a
/// hole.
Status CheckResults(const SavePlan& plan, const std::vector<WriteResult>& results) {
  std::vector<MetadataIndex> wanted;
  std::vector<MetadataIndex> got;
  wanted.reserve(plan.items.size());
  for (const WriteItem& item : plan.items) {
    wanted.push_back(item.index);
  }
  got.reserve(results.size());
  for (const WriteResult& result : results) {
    got.push_back(result.index);
  }
  std::sort(wanted.begin(), wanted.end());
  std::sort(got.begin(), got.end());
  const auto [a, b] = std::mismatch(wanted.begin(), wanted.end(), got.begin(), got.end());
  if (a != wanted.end() && (b == got.end() || *a < *b)) {
    return Internal("gave no result for " + ToString(*a));
  }
  if (b != got.end()) {
    return Internal("gave a result too many, for " + ToString(*b));
  }
  return Status::Ok();
}

class SaveRun {
 public:
  SaveRun(const State& state, StorageWriter& writer, SavePlanner& planner, Coordinator& coordinator,
          const CallOptions& options)
      : state_(state),
        writer_(writer),
        planner_(planner),
        coordinator_(coordinator),
        options_(options),
        what_(options.checkpoint_id ? "save \"" + *options.checkpoint_id + "\"" : "save") {}

  Result<StateMetadata> Run() {
    VARVE_RETURN_IF_ERROR(CheckCoordinatorRank(coordinator_, options_, what_));
    Result<std::string> mine = LocalPlan();
    VARVE_ASSIGN_OR_RETURN(const std::string plan, Combine(std::move(mine), &SaveRun::GlobalPlan));
    Result<std::string> results = Write(plan);
    VARVE_ASSIGN_OR_RETURN(const std::string metadata,
                           Combine(std::move(results), &SaveRun::Finish));
    return DecodeMetadata(metadata);
  }

  void Abandon() {
    if (!finished_) {
      const Status ignored = CallHook("StorageWriter::Abandon", [this] {
        writer_.Abandon();
        return Status::Ok();
      });
      (void)ignored;  // The save has an error to report already.
    }
  }

 private:
  using CoordinatorStep = Replies (SaveRun::*)(const std::vector<std::string>&);

  /// Lets the coordinator take a step with the contributions of all ranks, and returns its reply to
  /// this one. Without collectives each rank takes the step by itself.
  Result<std::string> Combine(Result<std::string> mine, CoordinatorStep step) {
    if (options_.use_collectives) {
      return Exchange(
          coordinator_, what_, std::move(mine), std::chrono::steady_clock::now() + options_.timeout,
          [&](const std::vector<std::string>& all) {
            return (this->*step)(all).Annotate("rank " + std::to_string(coordinator_.rank()));
          },
          options_.coordinator_rank);
    }
    VARVE_RETURN_IF_ERROR(mine.status().Annotate(what_));
    VARVE_ASSIGN_OR_RETURN(std::vector<std::string> replies,
                           (this->*step)({*mine}).Annotate(what_));
    if (replies.size() != 1) {
      return Internal("StorageWriter::PrepareGlobalPlan gave " + std::to_string(replies.size()) +
                      " plans for the one of this rank")
          .Annotate(what_);
    }
    return std::move(replies.front());
  }

  /// Makes steps 1 to 4.
  Result<std::string> LocalPlan() {
    if (options_.checkpoint_id) {
      VARVE_RETURN_IF_ERROR(CallHook("StorageWriter::Reset",
                                     [this] { return writer_.Reset(*options_.checkpoint_id); }));
    }
    const SaveRole role{.is_coordinator = coordinator_.rank() == options_.coordinator_rank,
                        .rank = coordinator_.rank(),
                        .use_collectives = options_.use_collectives};
    VARVE_RETURN_IF_ERROR(CallHook("SavePlanner::SetUpPlanner", [&] {
      return planner_.SetUpPlanner(state_, writer_.GetStorageMeta(), role);
    }));
    VARVE_RETURN_IF_ERROR(CallHook("StorageWriter::SetUpStorageWriter",
                                   [&] { return writer_.SetUpStorageWriter(role); }));
    VARVE_ASSIGN_OR_RETURN(SavePlan plan, CallHook("SavePlanner::CreateLocalPlan",
                                                   [this] { return planner_.CreateLocalPlan(); }));
    VARVE_ASSIGN_OR_RETURN(plan, CallHook("StorageWriter::PrepareLocalPlan", [&] {
                             return writer_.PrepareLocalPlan(std::move(plan));
                           }));
    return EncodeSavePlan(plan);
  }

  /// Makes step 5, on the coordinator.
  Replies GlobalPlan(const std::vector<std::string>& encoded) {
    std::vector<SavePlan> plans;
    for (const std::string& one : encoded) {
      VARVE_ASSIGN_OR_RETURN(plans.emplace_back(), DecodeSavePlan(one));
    }
    VARVE_ASSIGN_OR_RETURN(GlobalSavePlan global, CallHook("SavePlanner::CreateGlobalPlan", [&] {
                             return planner_.CreateGlobalPlan(std::move(plans));
                           }));
    VARVE_RETURN_IF_ERROR(CheckMetadata(global.metadata).Annotate("SavePlanner::CreateGlobalPlan"));
    metadata_ = std::move(global.metadata);
    VARVE_ASSIGN_OR_RETURN(plans, CallHook("StorageWriter::PrepareGlobalPlan", [&] {
                             return writer_.PrepareGlobalPlan(std::move(global.plans));
                           }));
    std::vector<std::string> replies;
    replies.reserve(plans.size());
    for (const SavePlan& plan : plans) {
      replies.push_back(EncodeSavePlan(plan));
    }
    return replies;  // Exchange refuses another number of them than there are ranks.
  }

  /// Makes steps 6 and 7.
  Result<std::string> Write(const std::string& encoded) {
    VARVE_ASSIGN_OR_RETURN(SavePlan plan, DecodeSavePlan(encoded));
    VARVE_ASSIGN_OR_RETURN(plan, CallHook("SavePlanner::FinishPlan",
                                          [&] { return planner_.FinishPlan(std::move(plan)); }));
    VARVE_ASSIGN_OR_RETURN(const auto results, CallHook("StorageWriter::WriteData", [&] {
                             return writer_.WriteData(plan, planner_);
                           }));
    VARVE_RETURN_IF_ERROR(CheckResults(plan, results).Annotate("StorageWriter::WriteData"));
    return EncodeWriteResults(results);
  }

  /// Makes step 8, on the coordinator.
  Replies Finish(const std::vector<std::string>& encoded) {
    std::vector<std::vector<WriteResult>> results;
    for (const std::string& one : encoded) {
      VARVE_ASSIGN_OR_RETURN(results.emplace_back(), DecodeWriteResults(one));
    }
    VARVE_RETURN_IF_ERROR(
        CallHook("StorageWriter::Finish", [&] { return writer_.Finish(metadata_, results); }));
    finished_ = true;
    return std::vector<std::string>(encoded.size(), EncodeMetadata(metadata_));
  }

  const State& state_;
  StorageWriter& writer_;
  SavePlanner& planner_;
  Coordinator& coordinator_;
  const CallOptions& options_;
  const std::string what_;
  StateMetadata metadata_;  // On the coordinator.
  bool finished_ = false;   // On the coordinator.
};

}  // namespace

Result<StateMetadata> Save(const State& state, StorageWriter& writer, SavePlanner& planner,
                           Coordinator& coordinator, const CallOptions& options) {
  SaveRun run(state, writer, planner, coordinator, options);
  Result<StateMetadata> result = run.Run();
  if (!result.ok()) {
    run.Abandon();
  }
  return result;
}

Result<StateMetadata> Save(const State& state, StorageWriter& writer, const CallOptions& options) {
  const auto coordinator = MakeSingleProcessCoordinator();
  DefaultSavePlanner planner;
  return Save(state, writer, planner, *coordinator, options);
}

}  // namespace varve::protocol
