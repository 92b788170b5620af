// Save and Load beside the hooks: the order of the calls, the coordinating rank, saves without
// collectives, and the choice of a backend.

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "support/memory_backend.h"
#include "support/ranks.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "varve/catalogue.h"
#include "varve/protocol/checkpoint.h"
#include "varve/protocol/file_system.h"

namespace varve::protocol::save_test {
namespace {

using varve::test::FailsWith;
using varve::test::IsOk;
using varve::test::OnEveryRank;
using varve::test::TempDir;

constexpr int kRanks = 3;

/// One tensor of kRanks elements, one a rank, and one that all have.
struct Held {
  std::uint32_t own;
  std::array<std::uint32_t, 2> same{5, 6};
  State state;

  explicit Held(int rank) : own(static_cast<std::uint32_t>(100 + rank)) {
    const Box box{{static_cast<std::uint64_t>(rank)}, {1}};
    state.tensors.push_back({"sharded", DType::kUInt32, {kRanks}, box, HostMemory{&own}});
    state.tensors.push_back({"same", DType::kUInt32, {2}, WholeBox({2}), HostMemory{same.data()}});
    state.objects.push_back({"step", EncodeValue(Value::Int(7))});
  }
};

/// All of what the ranks saved, read by one process.
Status CheckWhole(const std::string& path) {
  std::array<std::uint32_t, kRanks> sharded{};
  std::array<std::uint32_t, 2> same{};
  TargetState state;
  state.tensors.push_back(
      {"sharded", DType::kUInt32, {kRanks}, WholeBox({kRanks}), sharded.data(), {}});
  state.tensors.push_back({"same", DType::kUInt32, {2}, WholeBox({2}), same.data(), {}});
  FileSystemReader reader(path);
  VARVE_RETURN_IF_ERROR(Load(state, reader));
  const bool right = sharded == std::array<std::uint32_t, kRanks>{100, 101, 102} &&
                     same == std::array<std::uint32_t, 2>{5, 6};
  return right ? Status::Ok() : DataLoss("other content than was saved");
}

/// Notes the hooks that a rank is called by.
class NotingWriter : public FileSystemWriter {
 public:
  NotingWriter(std::string path, std::vector<std::string>* calls)
      : FileSystemWriter(std::move(path)), calls_(*calls) {}

  Status Reset(std::optional<std::string_view> id) override {
    calls_.emplace_back("Reset");
    return FileSystemWriter::Reset(id);
  }
  [[nodiscard]] std::optional<StorageMeta> GetStorageMeta() const override {
    calls_.emplace_back("GetStorageMeta");
    return FileSystemWriter::GetStorageMeta();
  }
  Status SetUpStorageWriter(const SaveRole& role) override {
    calls_.push_back("SetUpStorageWriter(" + std::to_string(role.rank) +
                     (role.is_coordinator ? ", coordinator" : "") +
                     (role.use_collectives ? ")" : ", alone)"));
    return FileSystemWriter::SetUpStorageWriter(role);
  }
  Result<SavePlan> PrepareLocalPlan(SavePlan plan) override {
    calls_.emplace_back("PrepareLocalPlan");
    return FileSystemWriter::PrepareLocalPlan(std::move(plan));
  }
  Result<std::vector<SavePlan>> PrepareGlobalPlan(std::vector<SavePlan> plans) override {
    calls_.push_back("PrepareGlobalPlan(" + std::to_string(plans.size()) + ")");
    return FileSystemWriter::PrepareGlobalPlan(std::move(plans));
  }
  Result<std::vector<WriteResult>> WriteData(const SavePlan& plan, SavePlanner& planner) override {
    calls_.emplace_back("WriteData");
    return FileSystemWriter::WriteData(plan, planner);
  }
  Status Finish(const StateMetadata& metadata,
                const std::vector<std::vector<WriteResult>>& results) override {
    calls_.push_back("Finish(" + std::to_string(results.size()) + ")");
    return FileSystemWriter::Finish(metadata, results);
  }

 private:
  std::vector<std::string>& calls_;
};

class NotingPlanner : public DefaultSavePlanner {
 public:
  explicit NotingPlanner(std::vector<std::string>* calls) : calls_(*calls) {}

  Status SetUpPlanner(const State& state, const std::optional<StorageMeta>& meta,
                      const SaveRole& role) override {
    calls_.emplace_back(role.is_coordinator ? "SetUpPlanner(coordinator)" : "SetUpPlanner");
    return DefaultSavePlanner::SetUpPlanner(state, meta, role);
  }
  Result<SavePlan> CreateLocalPlan() override {
    calls_.emplace_back("CreateLocalPlan");
    return DefaultSavePlanner::CreateLocalPlan();
  }
  Result<GlobalSavePlan> CreateGlobalPlan(std::vector<SavePlan> plans) override {
    calls_.emplace_back("CreateGlobalPlan");
    return DefaultSavePlanner::CreateGlobalPlan(std::move(plans));
  }
  Result<SavePlan> FinishPlan(SavePlan plan) override {
    calls_.emplace_back("FinishPlan");
    return DefaultSavePlanner::FinishPlan(std::move(plan));
  }

 private:
  std::vector<std::string>& calls_;
};

/// Saves on three ranks, and returns the hooks by rank.
std::vector<std::vector<std::string>> CallsOf(const std::string& path, const CallOptions& options) {
  std::vector<std::vector<std::string>> calls(kRanks);
  const auto results = OnEveryRank(MakeInProcessCoordinators(kRanks), [&](Coordinator& ranks) {
    const Held held(ranks.rank());
    std::vector<std::string>* mine = &calls[static_cast<std::size_t>(ranks.rank())];
    NotingWriter writer(path, mine);
    NotingPlanner planner(mine);
    return Save(held.state, writer, planner, ranks, options).status();
  });
  for (const auto& result : results) {
    EXPECT_TRUE(IsOk(*result));
  }
  return calls;
}

TEST(ProtocolSave, CallsPlannerAndWriterInTheOrderOfDcp) {
  const TempDir dir;
  CallOptions options;
  options.checkpoint_id = dir / "a";
  const auto calls = CallsOf(dir / "other", options);
  EXPECT_EQ(calls[0], (std::vector<std::string>{
                          "Reset", "GetStorageMeta", "SetUpPlanner(coordinator)",
                          "SetUpStorageWriter(0, coordinator)", "CreateLocalPlan",
                          "PrepareLocalPlan", "CreateGlobalPlan", "PrepareGlobalPlan(3)",
                          "FinishPlan", "WriteData", "Finish(3)"}));
  EXPECT_EQ(calls[2], (std::vector<std::string>{"Reset", "GetStorageMeta", "SetUpPlanner",
                                                "SetUpStorageWriter(2)", "CreateLocalPlan",
                                                "PrepareLocalPlan", "FinishPlan", "WriteData"}));
}

TEST(ProtocolSave, AnyRankCanCoordinate) {
  const TempDir dir;
  CallOptions options;
  options.coordinator_rank = 1;
  const auto calls = CallsOf(dir / "a", options);
  EXPECT_EQ(calls[1].back(), "Finish(3)");
  EXPECT_EQ(calls[0].back(), "WriteData");
  EXPECT_TRUE(IsOk(CheckWhole(dir / "a")));
  EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(dir / "a") /
                                      "__0_0.distcp"));  // Files stay their ranks'.
}

TEST(ProtocolSave, ACoordinatorThatIsNoRankIsRefused) {
  const TempDir dir;
  CallOptions options;
  options.coordinator_rank = 1;
  const Held held(0);
  FileSystemWriter writer(dir / "a");
  EXPECT_TRUE(FailsWith(Save(held.state, writer, options), StatusCode::kInvalidArgument,
                        {"coordinator_rank 1"}));
  TargetState nothing;
  FileSystemReader reader(dir / "a");
  EXPECT_TRUE(FailsWith(Load(nothing, reader, options), StatusCode::kInvalidArgument,
                        {"coordinator_rank 1"}));
  EXPECT_TRUE(FailsWith(Load(nothing, reader, {.use_collectives = false}),
                        StatusCode::kInvalidArgument, {"use_collectives"}));
}

TEST(ProtocolSave, TheRankThatCoordinatesIsNamedWhenItIsLost) {
  const TempDir dir;
  auto world = MakeInProcessCoordinators(kRanks);
  world[1].reset();
  CallOptions options;
  options.coordinator_rank = 1;
  const auto results = OnEveryRank(world, [&](Coordinator& ranks) {
    const Held held(ranks.rank());
    FileSystemWriter writer(dir / "a");
    DefaultSavePlanner planner;
    return Save(held.state, writer, planner, ranks, options).status();
  });
  EXPECT_TRUE(FailsWith(*results[0], StatusCode::kUnavailable, {"rank 1 (coordinator)"}));
  EXPECT_TRUE(FailsWith(*results[2], StatusCode::kUnavailable, {"rank 1 (coordinator)"}));
}

TEST(ProtocolSave, ALoadMayBeCoordinatedByAnyRankToo) {
  const TempDir dir;
  CallsOf(dir / "a", {});
  CallOptions options;
  options.coordinator_rank = 2;
  const auto results = OnEveryRank(MakeInProcessCoordinators(kRanks), [&](Coordinator& ranks) {
    std::array<std::uint32_t, 2> same{};
    TargetState state;
    state.tensors.push_back({"same", DType::kUInt32, {2}, WholeBox({2}), same.data(), {}});
    FileSystemReader reader(dir / "a");
    DefaultLoadPlanner planner;
    VARVE_RETURN_IF_ERROR(Load(state, reader, planner, ranks, options));
    return same[1] == 6 ? Status::Ok() : DataLoss("other content");
  });
  for (const auto& result : results) {
    EXPECT_TRUE(IsOk(*result));
  }
}

TEST(ProtocolSave, WithoutCollectivesEachRankSavesAndFinishesOnItsOwn) {
  const TempDir dir;
  CallOptions options;
  options.use_collectives = false;
  for (int save = 0; save < 2; ++save) {  // The second replaces the first.
    const auto calls = CallsOf(dir / "a", options);
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto& of_rank = calls[static_cast<std::size_t>(rank)];
      EXPECT_EQ(of_rank[6], "PrepareGlobalPlan(1)");
      EXPECT_EQ(of_rank.back(), "Finish(1)");
      EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(dir / "a") /
                                          ("__" + std::to_string(rank) + ".metadata")));
    }
    EXPECT_EQ(calls[2][2], "SetUpStorageWriter(2, alone)");
    EXPECT_TRUE(IsOk(CheckWhole(dir / "a")));
  }
  const auto verified = Verify(dir / "a");
  ASSERT_TRUE(IsOk(verified));
  EXPECT_TRUE(verified->clean());
}

TEST(ProtocolSave, WithoutCollectivesARankThatFailsFailsAlone) {
  const TempDir dir;
  CallOptions options;
  options.use_collectives = false;
  const auto results = OnEveryRank(MakeInProcessCoordinators(kRanks), [&](Coordinator& ranks) {
    Held held(ranks.rank());
    if (ranks.rank() == 1) {
      held.state.objects.push_back({"broken", "no encoded value"});
    }
    FileSystemWriter writer(dir / "a");
    DefaultSavePlanner planner;
    return Save(held.state, writer, planner, ranks, options).status();
  });
  EXPECT_TRUE(IsOk(*results[0]));
  EXPECT_TRUE(FailsWith(*results[1], StatusCode::kInvalidArgument, {"broken"}));
  EXPECT_TRUE(IsOk(*results[2]));
}

TEST(ProtocolBackends, APathIsServedByOurs) {
  const TempDir dir;
  auto writer = MakeStorageWriter(dir / "a");
  ASSERT_TRUE(IsOk(writer));
  const Held held(0);
  State state = held.state;
  state.tensors.erase(state.tensors.begin());  // Of a world of three.
  ASSERT_TRUE(IsOk(Save(state, **writer)));
  auto reader = MakeStorageReader(dir / "a");
  ASSERT_TRUE(IsOk(reader));
  const auto metadata = (*reader)->ReadMetadata();
  ASSERT_TRUE(IsOk(metadata));
  EXPECT_TRUE(metadata->state_dict_metadata.contains("same"));
}

TEST(ProtocolBackends, AnIdThatNobodyTakesIsRefusedByName) {
  EXPECT_TRUE(FailsWith(MakeStorageWriter("gs://bucket/a").status(), StatusCode::kInvalidArgument,
                        {"gs://bucket/a"}));
  EXPECT_TRUE(FailsWith(MakeStorageReader("gs://bucket/a").status(), StatusCode::kInvalidArgument,
                        {"gs://bucket/a"}));
}

}  // namespace
}  // namespace varve::protocol::save_test
