/// Planners decide which rank writes which items, and into which memory a load reads. The
/// interfaces, and the default planners of Save and Load. When each hook is called:
/// varve/protocol/storage_layer.h.
///
/// To change a detail, derive from DefaultSavePlanner or DefaultLoadPlanner and override one hook.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/protocol/metadata.h"
#include "varve/protocol/plan.h"
#include "varve/status.h"

namespace varve::protocol {

/// The content of a WriteItem. Valid as long as `owner` lives or, if that is empty, as long as the
/// State that is being saved.
struct ItemData {
  std::string_view bytes;      ///< Of a kByteIo item: an encoded Value.
  const void* data = nullptr;  ///< Of a tensor: the first element of the item's chunk.
  Strides strides;             ///< In elements; empty means row-major.
  std::shared_ptr<const void> owner;
};

/// Memory for a ReadItem's elements. Valid as ItemData is.
struct TensorMemory {
  DType dtype = DType::kUInt8;  ///< The stored one.
  void* data = nullptr;         ///< Where the first of the item's `lengths` elements goes.
  Strides strides;              ///< In elements; empty means row-major.
  std::shared_ptr<void> owner;
};

/// A rank's part in a save.
struct SaveRole {
  bool is_coordinator = false;  ///< With use_collectives false as it would be otherwise.
  int rank = 0;
  /// False: the other ranks know nothing of this rank's save. Its plan and its results are the only
  /// ones that PrepareGlobalPlan and Finish get, on every rank.
  bool use_collectives = true;
};

/// The plans that the coordinator makes of all ranks' plans.
struct GlobalSavePlan {
  std::vector<SavePlan> plans;  ///< By rank, as many as there are ranks.
  StateMetadata metadata;
};

/// Decides what each rank writes. One object a rank; it may be used for one save after the other.
class SavePlanner {
 public:
  virtual ~SavePlanner() = default;

  /// Begins a save. `state` stays as it is until the save ends. `storage_meta` is the
  /// StorageWriter's description of itself.
  virtual Status SetUpPlanner(const State& state, const std::optional<StorageMeta>& storage_meta,
                              const SaveRole& role) = 0;

  /// Returns all that this rank could write.
  virtual Result<SavePlan> CreateLocalPlan() = 0;

  /// Makes, on the coordinator, from all ranks' plans, by rank, the plan of each and the
  /// checkpoint's metadata.
  virtual Result<GlobalSavePlan> CreateGlobalPlan(std::vector<SavePlan> all_plans) = 0;

  /// Takes this rank's part, back from the coordinator; the last chance to change it.
  virtual Result<SavePlan> FinishPlan(SavePlan new_plan) { return new_plan; }

  /// Returns the content of an item of the finished plan. May allocate, so writers call it late.
  /// Threads: called at the same time for different items by writers that use several.
  virtual Result<ItemData> ResolveData(const WriteItem& item) = 0;
};

/// A value that a load fills.
struct TargetValue {
  std::string fqn;
  std::string encoded;  ///< As EncodeValue gives it; DecodeValue makes a Value of it.
};

/// The state that a load fills: the counterpart of State. Memory belongs to the caller.
struct TargetState {
  std::vector<TargetTensor> tensors;
  std::vector<TargetValue> objects;
};

/// Decides which stored items a load reads into which memory. One object a rank; may be used for
/// one load after the other.
class LoadPlanner {
 public:
  virtual ~LoadPlanner() = default;

  /// Begins a load into `state`, which stays where it is until the load ends. `metadata` has been
  /// checked (CheckMetadata) and lives as long.
  virtual Status SetUpPlanner(TargetState& state, const StateMetadata& metadata,
                              bool is_coordinator) = 0;

  /// Returns all that this rank wants to read.
  virtual Result<LoadPlan> CreateLocalPlan() = 0;

  /// Makes, on the coordinator, from all ranks' plans, by rank, the plan that each reads.
  virtual Result<std::vector<LoadPlan>> CreateGlobalPlan(std::vector<LoadPlan> all_plans) {
    return all_plans;
  }

  /// Takes this rank's part, back from the coordinator.
  virtual Result<LoadPlan> FinishPlan(LoadPlan new_plan) { return new_plan; }

  /// Takes a value that has been read. Threads: as SavePlanner::ResolveData; so are the next two.
  virtual Status LoadBytes(const ReadItem& item, std::string_view encoded) = 0;

  /// Returns the memory into which a tensor item is read.
  virtual Result<TensorMemory> ResolveTensor(const ReadItem& item) = 0;

  /// Reports that all of the item's elements are in `memory`, as ResolveTensor returned it.
  virtual Status CommitTensor(const ReadItem& item, const TensorMemory& memory) = 0;
};

/// Options of DCP's DefaultSavePlanner that mean something here. Not there: flatten_sharded_tensors
/// (a State holds no tensors inside of tensors), dedup_replicated_tensors (DCP itself ignores it)
/// and enable_plan_caching (plans are cheap to make, and a stale one is a wrong one).
struct DefaultSavePlannerOptions {
  /// False: replicas are spread over the ranks that hold them so that all write about as much,
  /// large tensors in pieces. True: the lowest of these ranks writes it, whole.
  bool dedup_save_to_lowest_rank = false;
  /// True: the state's containers (State::structure) are stored, as StateMetadata::planner_data.
  /// False: names only. Names are flat in either case: a State is.
  bool flatten_state_dict = true;
};

/// Each distinct box of a tensor and each value is written once. Errors of the global plan:
/// InvalidArgument where ranks disagree about a tensor, where shards overlap without being equal,
/// and where no rank holds a part of a tensor (not without collectives: the others may hold it).
class DefaultSavePlanner : public SavePlanner {
 public:
  explicit DefaultSavePlanner(DefaultSavePlannerOptions options = {}) : options_(options) {}

  Status SetUpPlanner(const State& state, const std::optional<StorageMeta>& storage_meta,
                      const SaveRole& role) override;
  Result<SavePlan> CreateLocalPlan() override;
  Result<GlobalSavePlan> CreateGlobalPlan(std::vector<SavePlan> all_plans) override;
  /// Returns the part of the State's own memory. Errors: NotFound for an item that the state does
  /// not hold.
  Result<ItemData> ResolveData(const WriteItem& item) override;

 protected:
  [[nodiscard]] const State& state() const { return *state_; }

 private:
  DefaultSavePlannerOptions options_;
  SaveRole role_;
  const State* state_ = nullptr;
  std::multimap<std::string_view, const SourceTensor*> tensors_;
  std::map<std::string_view, const SourceObject*> objects_;
};

/// Options of DCP's DefaultLoadPlanner that mean something here. flatten_state_dict and
/// flatten_sharded_tensors do not: a TargetState is flat.
struct DefaultLoadPlannerOptions {
  /// True: targets that the checkpoint does not have are left as they are. Tensors of another size
  /// or type are refused in either case.
  bool allow_partial_load = false;
};

/// Reads the entries that the TargetState names, from any chunks that hold them, straight into
/// place. Ignores other names in the checkpoint. Errors of the local plan, naming all entries
/// concerned: NotFound for missing names; InvalidArgument for another size, dtype or kind; DataLoss
/// for elements that no chunk holds.
class DefaultLoadPlanner : public LoadPlanner {
 public:
  explicit DefaultLoadPlanner(DefaultLoadPlannerOptions options = {}) : options_(options) {}

  Status SetUpPlanner(TargetState& state, const StateMetadata& metadata,
                      bool is_coordinator) override;
  Result<LoadPlan> CreateLocalPlan() override;
  Status LoadBytes(const ReadItem& item, std::string_view encoded) override;
  Result<TensorMemory> ResolveTensor(const ReadItem& item) override;
  Status CommitTensor(const ReadItem& item, const TensorMemory& memory) override;

 protected:
  [[nodiscard]] TargetState& state() { return *state_; }
  [[nodiscard]] const StateMetadata& metadata() const { return *metadata_; }

 private:
  DefaultLoadPlannerOptions options_;
  TargetState* state_ = nullptr;
  const StateMetadata* metadata_ = nullptr;
  std::multimap<std::string_view, const TargetTensor*> tensors_;
  std::map<std::string_view, TargetValue*> objects_;
};

}  // namespace varve::protocol
