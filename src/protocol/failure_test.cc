// Every hook of every class fails once, on the coordinator and on another rank, by an error and by
// an exception. The rules are those of varve/protocol/storage_layer.h.

#include <array>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "varve/protocol/checkpoint.h"
#include "varve/protocol/file_system.h"

namespace varve::protocol::failure_test {
namespace {

using varve::test::IsOk;
using varve::test::OnEveryRank;
using varve::test::TempDir;

constexpr int kRanks = 3;

/// Springs at one hook on one rank.
struct Trap {
  std::string hook;
  int rank = 0;
  bool throws = false;

  [[nodiscard]] Status At(const std::string& here, int on) const {
    if (here != hook || on != rank) {
      return Status::Ok();
    }
    if (throws) {
      throw std::runtime_error("sprung");
    }
    return FailedPrecondition("sprung");
  }
};

class TrappedWriter : public FileSystemWriter {
 public:
  TrappedWriter(std::string path, const Trap& trap, int rank)
      : FileSystemWriter(std::move(path)), trap_(trap), rank_(rank) {}

  Status Reset(std::optional<std::string_view> id) override {
    VARVE_RETURN_IF_ERROR(trap_.At("StorageWriter::Reset", rank_));
    return FileSystemWriter::Reset(id);
  }
  Status SetUpStorageWriter(const SaveRole& role) override {
    VARVE_RETURN_IF_ERROR(trap_.At("StorageWriter::SetUpStorageWriter", rank_));
    return FileSystemWriter::SetUpStorageWriter(role);
  }
  Result<SavePlan> PrepareLocalPlan(SavePlan plan) override {
    VARVE_RETURN_IF_ERROR(trap_.At("StorageWriter::PrepareLocalPlan", rank_));
    return FileSystemWriter::PrepareLocalPlan(std::move(plan));
  }
  Result<std::vector<SavePlan>> PrepareGlobalPlan(std::vector<SavePlan> plans) override {
    EXPECT_EQ(rank_, 0);
    VARVE_RETURN_IF_ERROR(trap_.At("StorageWriter::PrepareGlobalPlan", rank_));
    return FileSystemWriter::PrepareGlobalPlan(std::move(plans));
  }
  Result<std::vector<WriteResult>> WriteData(const SavePlan& plan, SavePlanner& planner) override {
    VARVE_ASSIGN_OR_RETURN(auto results, FileSystemWriter::WriteData(plan, planner));
    VARVE_RETURN_IF_ERROR(trap_.At("StorageWriter::WriteData", rank_));
    return results;
  }
  Status Finish(const StateMetadata& metadata,
                const std::vector<std::vector<WriteResult>>& results) override {
    EXPECT_EQ(rank_, 0);
    VARVE_RETURN_IF_ERROR(trap_.At("StorageWriter::Finish", rank_));
    return FileSystemWriter::Finish(metadata, results);
  }
  void Abandon() override {
    ++abandoned;
    FileSystemWriter::Abandon();
  }

  int abandoned = 0;

 private:
  Trap trap_;
  int rank_;
};

class TrappedSavePlanner : public DefaultSavePlanner {
 public:
  TrappedSavePlanner(const Trap& trap, int rank) : trap_(trap), rank_(rank) {}

  Status SetUpPlanner(const State& state, const std::optional<StorageMeta>& meta,
                      const SaveRole& role) override {
    EXPECT_TRUE(meta.has_value());
    EXPECT_EQ(role.is_coordinator, rank_ == 0);
    VARVE_RETURN_IF_ERROR(trap_.At("SavePlanner::SetUpPlanner", rank_));
    return DefaultSavePlanner::SetUpPlanner(state, meta, role);
  }
  Result<SavePlan> CreateLocalPlan() override {
    VARVE_RETURN_IF_ERROR(trap_.At("SavePlanner::CreateLocalPlan", rank_));
    return DefaultSavePlanner::CreateLocalPlan();
  }
  Result<GlobalSavePlan> CreateGlobalPlan(std::vector<SavePlan> plans) override {
    EXPECT_EQ(rank_, 0);
    VARVE_RETURN_IF_ERROR(trap_.At("SavePlanner::CreateGlobalPlan", rank_));
    return DefaultSavePlanner::CreateGlobalPlan(std::move(plans));
  }
  Result<SavePlan> FinishPlan(SavePlan plan) override {
    VARVE_RETURN_IF_ERROR(trap_.At("SavePlanner::FinishPlan", rank_));
    return DefaultSavePlanner::FinishPlan(std::move(plan));
  }
  Result<ItemData> ResolveData(const WriteItem& item) override {
    VARVE_RETURN_IF_ERROR(trap_.At("ResolveData", rank_));
    return DefaultSavePlanner::ResolveData(item);
  }

 private:
  Trap trap_;
  int rank_;
};

class TrappedReader : public FileSystemReader {
 public:
  TrappedReader(std::string path, const Trap& trap, int rank)
      : FileSystemReader(std::move(path)), trap_(trap), rank_(rank) {}

  Status Reset(std::optional<std::string_view> id) override {
    VARVE_RETURN_IF_ERROR(trap_.At("StorageReader::Reset", rank_));
    return FileSystemReader::Reset(id);
  }
  Result<StateMetadata> ReadMetadata() override {
    VARVE_RETURN_IF_ERROR(trap_.At("StorageReader::ReadMetadata", rank_));
    return FileSystemReader::ReadMetadata();
  }
  Status SetUpStorageReader(const StateMetadata& metadata, bool is_coordinator) override {
    VARVE_RETURN_IF_ERROR(trap_.At("StorageReader::SetUpStorageReader", rank_));
    return FileSystemReader::SetUpStorageReader(metadata, is_coordinator);
  }
  Result<LoadPlan> PrepareLocalPlan(LoadPlan plan) override {
    VARVE_RETURN_IF_ERROR(trap_.At("StorageReader::PrepareLocalPlan", rank_));
    return FileSystemReader::PrepareLocalPlan(std::move(plan));
  }
  Result<std::vector<LoadPlan>> PrepareGlobalPlan(std::vector<LoadPlan> plans) override {
    EXPECT_EQ(rank_, 0);
    VARVE_RETURN_IF_ERROR(trap_.At("StorageReader::PrepareGlobalPlan", rank_));
    return FileSystemReader::PrepareGlobalPlan(std::move(plans));
  }
  Status ReadData(const LoadPlan& plan, LoadPlanner& planner) override {
    VARVE_RETURN_IF_ERROR(trap_.At("StorageReader::ReadData", rank_));
    return FileSystemReader::ReadData(plan, planner);
  }

 private:
  Trap trap_;
  int rank_;
};

class TrappedLoadPlanner : public DefaultLoadPlanner {
 public:
  TrappedLoadPlanner(const Trap& trap, int rank) : trap_(trap), rank_(rank) {}

  Status SetUpPlanner(TargetState& state, const StateMetadata& metadata,
                      bool is_coordinator) override {
    EXPECT_EQ(is_coordinator, rank_ == 0);
    VARVE_RETURN_IF_ERROR(trap_.At("LoadPlanner::SetUpPlanner", rank_));
    return DefaultLoadPlanner::SetUpPlanner(state, metadata, is_coordinator);
  }
  Result<LoadPlan> CreateLocalPlan() override {
    VARVE_RETURN_IF_ERROR(trap_.At("LoadPlanner::CreateLocalPlan", rank_));
    return DefaultLoadPlanner::CreateLocalPlan();
  }
  Result<std::vector<LoadPlan>> CreateGlobalPlan(std::vector<LoadPlan> plans) override {
    EXPECT_EQ(rank_, 0);
    VARVE_RETURN_IF_ERROR(trap_.At("LoadPlanner::CreateGlobalPlan", rank_));
    return DefaultLoadPlanner::CreateGlobalPlan(std::move(plans));
  }
  Result<LoadPlan> FinishPlan(LoadPlan plan) override {
    VARVE_RETURN_IF_ERROR(trap_.At("LoadPlanner::FinishPlan", rank_));
    return DefaultLoadPlanner::FinishPlan(std::move(plan));
  }
  Status LoadBytes(const ReadItem& item, std::string_view encoded) override {
    VARVE_RETURN_IF_ERROR(trap_.At("LoadBytes", rank_));
    return DefaultLoadPlanner::LoadBytes(item, encoded);
  }
  Result<TensorMemory> ResolveTensor(const ReadItem& item) override {
    VARVE_RETURN_IF_ERROR(trap_.At("ResolveTensor", rank_));
    return DefaultLoadPlanner::ResolveTensor(item);
  }
  Status CommitTensor(const ReadItem& item, const TensorMemory& memory) override {
    VARVE_RETURN_IF_ERROR(trap_.At("CommitTensor", rank_));
    return DefaultLoadPlanner::CommitTensor(item, memory);
  }

 private:
  Trap trap_;
  int rank_;
};

using Row = std::array<float, 1000>;

Box RowOf(int rank) { return {{static_cast<std::uint64_t>(rank), 0}, {1, 1000}}; }

Row Filled(int rank, float first) {
  Row row{};
  std::iota(row.begin(), row.end(), first + static_cast<float>(rank) * 1000);
  return row;
}

struct SaveOutcome {
  Status status;
  int abandoned = 0;
};

SaveOutcome SaveWith(const std::string& path, const Trap& trap, float first, Coordinator& ranks) {
  const int rank = ranks.rank();
  const Row row = Filled(rank, first);
  State state;
  state.tensors.push_back(
      {"w", DType::kFloat32, {kRanks, 1000}, RowOf(rank), HostMemory{row.data()}});
  state.objects.push_back({"of." + std::to_string(rank), EncodeValue(Value::Float(first))});
  TrappedWriter writer("unset", trap, rank);
  TrappedSavePlanner planner(trap, rank);
  CallOptions options;
  options.checkpoint_id = path;
  // Reset and SetUpStorageWriter abandon as well; this counts only the calls by Save.
  SaveOutcome outcome;
  outcome.status = Save(state, writer, planner, ranks, options).status();
  outcome.abandoned = writer.abandoned;
  return outcome;
}

struct LoadOutcome {
  Status status;
  Row row{};
};

LoadOutcome LoadWith(const std::string& path, const Trap& trap, Coordinator& ranks) {
  const int rank = ranks.rank();
  LoadOutcome outcome;
  TargetState state;
  state.tensors.push_back(
      {"w", DType::kFloat32, {kRanks, 1000}, RowOf(rank), outcome.row.data(), {}});
  state.objects.push_back({"of." + std::to_string(rank), ""});
  TrappedReader reader("unset", trap, rank);
  TrappedLoadPlanner planner(trap, rank);
  CallOptions options;
  options.checkpoint_id = path;
  outcome.status = Load(state, reader, planner, ranks, options);
  return outcome;
}

/// Checks that all ranks report the same error, which names the trap's hook and rank.
template <class Outcomes>
void ExpectSprung(const Outcomes& outcomes, const Trap& trap) {
  const std::string text = outcomes[0]->status.ToString();
  EXPECT_NE(text.find("rank " + std::to_string(trap.rank) + ": "), std::string::npos) << text;
  EXPECT_NE(text.find("sprung"), std::string::npos) << text;
  if (trap.hook.find("::") != std::string::npos) {
    EXPECT_NE(text.find(trap.hook), std::string::npos) << text;
  }
  EXPECT_EQ(outcomes[0]->status.code(),
            trap.throws ? StatusCode::kInternal : StatusCode::kFailedPrecondition);
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome->status.ToString(), text);
  }
}

struct HookCase {
  const char* name;
  bool coordinator_only = false;
};

/// Returns traps for each hook, on rank 0 and, where it is called there, on the last; by error and
/// by exception.
std::vector<Trap> TrapsAt(const std::vector<HookCase>& hooks) {
  std::vector<Trap> traps;
  for (const HookCase& hook : hooks) {
    for (const bool throws : {false, true}) {
      traps.push_back({hook.name, 0, throws});
      if (!hook.coordinator_only) {
        traps.push_back({hook.name, kRanks - 1, throws});
      }
    }
  }
  return traps;
}

void ExpectWhole(const std::string& path, float first) {
  const auto world = MakeInProcessCoordinators(kRanks);
  const auto loaded =
      OnEveryRank(world, [&](Coordinator& ranks) { return LoadWith(path, {}, ranks); });
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto& outcome = *loaded[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(IsOk(outcome.status));
    EXPECT_EQ(outcome.row, Filled(rank, first));
  }
}

TEST(ProtocolFailures, AHookThatFailsInASaveFailsItOnAllRanksAndChangesNothing) {
  const TempDir dir;
  const std::string path = dir / "step-1";
  const auto world = MakeInProcessCoordinators(kRanks);
  const auto first =
      OnEveryRank(world, [&](Coordinator& ranks) { return SaveWith(path, {}, 1, ranks); });
  ASSERT_TRUE(IsOk(first[0]->status));
  const int abandoned_by_itself = first[0]->abandoned;  // By Reset and SetUpStorageWriter.

  for (const Trap& trap : TrapsAt({{"StorageWriter::Reset"},
                                   {"StorageWriter::SetUpStorageWriter"},
                                   {"SavePlanner::SetUpPlanner"},
                                   {"SavePlanner::CreateLocalPlan"},
                                   {"StorageWriter::PrepareLocalPlan"},
                                   {"SavePlanner::CreateGlobalPlan", true},
                                   {"StorageWriter::PrepareGlobalPlan", true},
                                   {"SavePlanner::FinishPlan"},
                                   {"StorageWriter::WriteData"},
                                   {"ResolveData"},
                                   {"StorageWriter::Finish", true}})) {
    SCOPED_TRACE(trap.hook + " on rank " + std::to_string(trap.rank));
    // The same world for all: an error of a hook does not put ranks out of step.
    const auto outcomes =
        OnEveryRank(world, [&](Coordinator& ranks) { return SaveWith(path, trap, 2, ranks); });
    ExpectSprung(outcomes, trap);
    for (int rank = 0; rank < kRanks; ++rank) {
      const bool set_up_failed = trap.rank == rank && (trap.hook.ends_with("Reset") ||
                                                       trap.hook.ends_with("SetUpPlanner") ||
                                                       trap.hook.ends_with("SetUpStorageWriter"));
      EXPECT_GE(outcomes[static_cast<std::size_t>(rank)]->abandoned,
                set_up_failed ? 1 : abandoned_by_itself + 1);
    }
    ExpectWhole(path, 1);
    const auto entries = std::filesystem::directory_iterator(dir.path());
    EXPECT_EQ(std::distance(begin(entries), end(entries)), 1) << "something was left behind";
  }
}

TEST(ProtocolFailures, AHookThatFailsInALoadFailsItOnAllRanks) {
  const TempDir dir;
  const std::string path = dir / "step-1";
  const auto world = MakeInProcessCoordinators(kRanks);
  const auto saved =
      OnEveryRank(world, [&](Coordinator& ranks) { return SaveWith(path, {}, 1, ranks); });
  ASSERT_TRUE(IsOk(saved[0]->status));

  const std::vector<Trap> before = TrapsAt({{"StorageReader::Reset"},
                                            {"StorageReader::ReadMetadata"},
                                            {"LoadPlanner::SetUpPlanner"},
                                            {"StorageReader::SetUpStorageReader"},
                                            {"LoadPlanner::CreateLocalPlan"},
                                            {"StorageReader::PrepareLocalPlan"},
                                            {"LoadPlanner::CreateGlobalPlan", true},
                                            {"StorageReader::PrepareGlobalPlan", true}});
  for (const Trap& trap : before) {
    SCOPED_TRACE(trap.hook + " on rank " + std::to_string(trap.rank));
    const auto outcomes =
        OnEveryRank(world, [&](Coordinator& ranks) { return LoadWith(path, trap, ranks); });
    ExpectSprung(outcomes, trap);
    for (const auto& outcome : outcomes) {
      EXPECT_EQ(outcome->row, Row()) << "memory was touched before the ranks agreed";
    }
  }
  for (const Trap& trap : TrapsAt({{"LoadPlanner::FinishPlan"},
                                   {"StorageReader::ReadData"},
                                   {"ResolveTensor"},
                                   {"CommitTensor"},
                                   {"LoadBytes"}})) {
    SCOPED_TRACE(trap.hook + " on rank " + std::to_string(trap.rank));
    ExpectSprung(
        OnEveryRank(world, [&](Coordinator& ranks) { return LoadWith(path, trap, ranks); }), trap);
  }
  ExpectWhole(path, 1);
}

TEST(ProtocolFailures, AllRanksThatFailedAreNamed) {
  const TempDir dir;
  const auto world = MakeInProcessCoordinators(kRanks);
  const auto outcomes = OnEveryRank(world, [&](Coordinator& ranks) {
    const Trap trap{"StorageWriter::WriteData", ranks.rank() == 1 ? -1 : ranks.rank()};
    return SaveWith(dir / "a", trap, 1, ranks);
  });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome->status.message(),
              "save \"" + (dir / "a") + "\": each of ranks 0, 2: StorageWriter::WriteData: sprung");
  }
}

TEST(ProtocolFailures, AGlobalPlanForAnotherNumberOfRanksIsRefused) {
  class ForgetfulPlanner : public DefaultSavePlanner {
   public:
    Result<GlobalSavePlan> CreateGlobalPlan(std::vector<SavePlan> all_plans) override {
      VARVE_ASSIGN_OR_RETURN(GlobalSavePlan plan,
                             DefaultSavePlanner::CreateGlobalPlan(std::move(all_plans)));
      plan.plans.pop_back();
      return plan;
    }
  };
  const TempDir dir;
  const auto world = MakeInProcessCoordinators(2);
  const auto outcomes = OnEveryRank(world, [&](Coordinator& ranks) {
    FileSystemWriter writer(dir / "a");
    ForgetfulPlanner planner;
    return Save(State(), writer, planner, ranks).status();
  });
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(varve::test::FailsWith(*outcome, StatusCode::kInternal, {"1", "2 ranks"}));
  }
}

}  // namespace
}  // namespace varve::protocol::failure_test
