// Save and Load over our own backend: layouts, files on disk, and refusals.

#include "varve/protocol/file_system.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "varve/catalogue.h"
#include "varve/protocol/checkpoint.h"

namespace varve::protocol::file_system_test {
namespace {

using varve::test::FailsWith;
using varve::test::IsOk;
using varve::test::OnEveryRank;
using varve::test::TempDir;

constexpr std::uint64_t kRows = 12;
constexpr std::uint64_t kColumns = 1024;

Box RowsOf(int rank, int size) {
  const std::uint64_t rows = kRows / static_cast<std::uint64_t>(size);
  return {{static_cast<std::uint64_t>(rank) * rows, 0}, {rows, kColumns}};
}

/// Returns a box whose element (r, c) is r * kColumns + c.
std::vector<std::uint32_t> Filled(const Box& box) {
  std::vector<std::uint32_t> data;
  for (std::uint64_t r = 0; r < box.sizes[0]; ++r) {
    for (std::uint64_t c = 0; c < box.sizes[1]; ++c) {
      data.push_back(
          static_cast<std::uint32_t>((box.offsets[0] + r) * kColumns + box.offsets[1] + c));
    }
  }
  return data;
}

/// The state of a rank: its rows of "sharded", all of "same", a value of all ranks and one of its
/// own.
struct Held {
  std::vector<std::uint32_t> rows;
  std::vector<std::uint32_t> same = Filled({{0, 0}, {1, 500}});
  State state;

  Held(int rank, int size) : rows(Filled(RowsOf(rank, size))) {
    state.tensors.push_back({"sharded",
                             DType::kUInt32,
                             {kRows, kColumns},
                             RowsOf(rank, size),
                             HostMemory{rows.data()}});
    state.tensors.push_back(
        {"same", DType::kUInt32, {1, 500}, WholeBox({1, 500}), HostMemory{same.data()}});
    state.objects.push_back({"step", EncodeValue(Value::Int(7))});
    state.objects.push_back({"rank." + std::to_string(rank), EncodeValue(Value::Int(rank))});
  }
};

Result<StateMetadata> SaveRank(const std::string& path, Coordinator& ranks,
                               FileSystemWriterOptions options = {}) {
  const Held held(ranks.rank(), ranks.size());
  FileSystemWriter writer(path, std::move(options));
  DefaultSavePlanner planner;
  return Save(held.state, writer, planner, ranks);
}

/// Saves by `size` ranks; all must return the same metadata.
void SaveAll(const std::string& path, int size) {
  const auto world = MakeInProcessCoordinators(size);
  const auto results =
      OnEveryRank(world, [&](Coordinator& ranks) { return SaveRank(path, ranks); });
  for (const auto& result : results) {
    ASSERT_TRUE(IsOk(*result));
    EXPECT_EQ(**result, **results[0]);
  }
}

Status LoadBox(const std::string& path, const Box& box, Coordinator& ranks) {
  std::vector<std::uint32_t> memory(box.sizes[0] * box.sizes[1]);
  TargetState state;
  state.tensors.push_back({"sharded", DType::kUInt32, {kRows, kColumns}, box, memory.data(), {}});
  state.objects.push_back({"step", ""});
  FileSystemReader reader(path);
  DefaultLoadPlanner planner;
  VARVE_RETURN_IF_ERROR(Load(state, reader, planner, ranks));
  const bool right =
      memory == Filled(box) && state.objects[0].encoded == EncodeValue(Value::Int(7));
  return right ? Status::Ok() : DataLoss("other content than was saved");
}

TEST(FileSystemBackend, LoadsInEveryLayoutWhatAnyLayoutSaved) {
  const TempDir dir;
  for (int saved_by = 1; saved_by <= 4; ++saved_by) {
    const std::string path = dir / ("by-" + std::to_string(saved_by));
    SaveAll(path, saved_by);
    for (std::uint64_t loaded_by = 1; loaded_by <= 4; ++loaded_by) {
      const auto world = MakeInProcessCoordinators(static_cast<int>(loaded_by));
      const auto results = OnEveryRank(world, [&](Coordinator& ranks) {
        const std::uint64_t columns = kColumns / loaded_by;
        const auto first = static_cast<std::uint64_t>(ranks.rank()) * columns;
        return LoadBox(path, {{0, first}, {kRows, columns}}, ranks);
      });
      for (const auto& result : results) {
        EXPECT_TRUE(IsOk(*result));
      }
    }
  }
}

std::set<std::string> NamesIn(const std::string& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.insert(entry.path().filename());
  }
  return names;
}

TEST(FileSystemBackend, LeavesTheFilesOfADcpCheckpointAndNothingElse) {
  const TempDir dir;
  SaveAll(dir / "step-1", 3);
  EXPECT_EQ(NamesIn(dir.path()), (std::set<std::string>{"step-1"}));
  EXPECT_EQ(NamesIn(dir / "step-1"),
            (std::set<std::string>{".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"}));
  const auto report = Verify(dir / "step-1");
  ASSERT_TRUE(IsOk(report));
  EXPECT_TRUE(report->clean());
  EXPECT_TRUE(report->notes.empty()) << report->notes.front();  // Every byte has a checksum.
}

TEST(FileSystemBackend, ReadsCheckpointsOfTheEngineToo) {
  const TempDir dir;
  const Held held(0, 1);
  ASSERT_TRUE(IsOk(varve::Save(held.state, dir / "native")));
  const auto alone = MakeSingleProcessCoordinator();
  EXPECT_TRUE(IsOk(LoadBox(dir / "native", {{3, 5}, {4, 7}}, *alone)));
}

TEST(FileSystemBackend, AnEmptyStateIsACheckpointToo) {
  const TempDir dir;
  FileSystemWriter writer(dir / "empty");
  ASSERT_TRUE(IsOk(Save(State(), writer)));
  FileSystemReader reader(dir / "empty");
  const auto metadata = reader.ReadMetadata();
  ASSERT_TRUE(IsOk(metadata));
  EXPECT_TRUE(metadata->state_dict_metadata.empty());
}

TEST(FileSystemBackend, AllRanksLearnWhichValueCannotBeStored) {
  const TempDir dir;
  const auto world = MakeInProcessCoordinators(2);
  const auto results = OnEveryRank(world, [&](Coordinator& ranks) {
    Held held(ranks.rank(), ranks.size());
    if (ranks.rank() == 1) {
      Value pickle;
      pickle.kind = ValueKind::kPickle;
      held.state.objects.push_back({"odd.pickle", EncodeValue(pickle)});
      held.state.objects.push_back({"odd.bytes", "\xFF no value"});
    }
    FileSystemWriter writer(dir / "a");
    DefaultSavePlanner planner;
    return Save(held.state, writer, planner, ranks).status();
  });
  for (const auto& result : results) {
    EXPECT_TRUE(FailsWith(*result, StatusCode::kUnimplemented,
                          {"save: rank 1: StorageWriter::WriteData", "\"odd.pickle\""}));
  }
  EXPECT_TRUE(NamesIn(dir.path()).empty());

  State state;
  state.objects.push_back({"odd.bytes", "\xFF no value"});
  FileSystemWriter writer(dir / "b");
  EXPECT_TRUE(FailsWith(Save(state, writer), StatusCode::kInvalidArgument,
                        {"\"odd.bytes\"", "no encoded value"}));
}

TEST(FileSystemBackend, RefusesATakenNameBeforeItWrites) {
  const TempDir dir;
  SaveAll(dir / "a", 1);
  FileSystemWriterOptions options;
  options.overwrite = false;
  const auto alone = MakeSingleProcessCoordinator();
  EXPECT_TRUE(FailsWith(SaveRank(dir / "a", *alone, options), StatusCode::kAlreadyExists,
                        {"rank 0: StorageWriter::PrepareGlobalPlan"}));

  std::filesystem::create_directory(dir / "things");
  std::filesystem::create_directory(dir / "things/of mine");
  EXPECT_TRUE(FailsWith(SaveRank(dir / "things", *alone), StatusCode::kFailedPrecondition));
  EXPECT_EQ(NamesIn(dir / "things"), (std::set<std::string>{"of mine"}));
}

TEST(FileSystemBackend, TwoSavesOfOneNameDoNotMix) {
  const TempDir dir;
  FileSystemWriter first(dir / "a");
  ASSERT_TRUE(IsOk(first.SetUpStorageWriter({.is_coordinator = true})));
  ASSERT_TRUE(IsOk(first.PrepareGlobalPlan({SavePlan()})));
  const auto alone = MakeSingleProcessCoordinator();
  EXPECT_TRUE(FailsWith(SaveRank(dir / "a", *alone), StatusCode::kFailedPrecondition));
  first.Abandon();
  EXPECT_TRUE(IsOk(SaveRank(dir / "a", *alone)));
}

TEST(FileSystemBackend, RanksThatDoNotShareTheStorageAreNamed) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "elsewhere");
  const auto world = MakeInProcessCoordinators(2);
  const auto saved = OnEveryRank(world, [&](Coordinator& ranks) {
    return SaveRank(ranks.rank() == 0 ? dir / "a" : dir / "elsewhere/a", ranks).status();
  });
  for (const auto& result : saved) {
    EXPECT_TRUE(FailsWith(*result, StatusCode::kFailedPrecondition, {"rank 1", "do not share"}));
  }
  SaveAll(dir / "a", 1);
  SaveAll(dir / "elsewhere/a", 2);
  const auto loaded = OnEveryRank(world, [&](Coordinator& ranks) {
    return LoadBox(ranks.rank() == 0 ? dir / "a" : dir / "elsewhere/a", {{0, 0}, {1, 1}}, ranks);
  });
  for (const auto& result : loaded) {
    EXPECT_TRUE(FailsWith(*result, StatusCode::kFailedPrecondition,
                          {"rank 1 sees another checkpoint than rank 0"}));
  }
}

TEST(FileSystemBackend, NamesALostRankAndKeepsThePreviousCheckpoint) {
  const TempDir dir;
  SaveAll(dir / "a", 3);
  auto world = MakeInProcessCoordinators(3);
  world[2].reset();
  const auto results =
      OnEveryRank(world, [&](Coordinator& ranks) { return SaveRank(dir / "a", ranks).status(); });
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(
        FailsWith(*results[static_cast<std::size_t>(rank)], StatusCode::kUnavailable, {"rank 2"}));
  }
  const auto alone = MakeSingleProcessCoordinator();
  EXPECT_TRUE(IsOk(LoadBox(dir / "a", {{0, 0}, {kRows, kColumns}}, *alone)));
  EXPECT_EQ(NamesIn(dir.path()), (std::set<std::string>{"a"}));
}

TEST(FileSystemBackend, TakesPathsOnly) {
  EXPECT_TRUE(FileSystemWriter::ValidateCheckpointId("/somewhere/step-1"));
  EXPECT_FALSE(FileSystemWriter::ValidateCheckpointId("gs://bucket/step-1"));
  EXPECT_FALSE(FileSystemReader::ValidateCheckpointId(""));
  FileSystemWriter writer("a");
  FileSystemReader reader("a");
  EXPECT_TRUE(FailsWith(writer.Reset("gs://b"), StatusCode::kInvalidArgument, {"gs://b"}));
  EXPECT_TRUE(FailsWith(reader.Reset("gs://b"), StatusCode::kInvalidArgument, {"gs://b"}));
}

TEST(FileSystemBackend, HooksOutOfOrderAreErrors) {
  const TempDir dir;
  FileSystemWriter writer(dir / "a");
  EXPECT_TRUE(FailsWith(writer.Finish({}, {}), StatusCode::kFailedPrecondition, {"no save"}));
  DefaultSavePlanner planner;
  SavePlan plan;
  plan.items.emplace_back();
  for (const std::string& storage_data :
       {std::string(), std::string("rubbish"), std::string("\x06../../x\x00", 9)}) {
    plan.storage_data = storage_data;
    EXPECT_TRUE(FailsWith(writer.WriteData(plan, planner), StatusCode::kInvalidArgument,
                          {"where to write"}));
  }
  FileSystemReader reader(dir / "a");
  EXPECT_TRUE(FailsWith(reader.SetUpStorageReader({}, true), StatusCode::kFailedPrecondition));
}

TEST(FileSystemBackend, PlannerDataThatIsNoStructureIsRefused) {
  class OddPlanner : public DefaultSavePlanner {
   public:
    Result<GlobalSavePlan> CreateGlobalPlan(std::vector<SavePlan> all_plans) override {
      VARVE_ASSIGN_OR_RETURN(GlobalSavePlan plan,
                             DefaultSavePlanner::CreateGlobalPlan(std::move(all_plans)));
      plan.metadata.planner_data = "\xFF odd";
      return plan;
    }
  };
  const TempDir dir;
  const Held held(0, 1);
  FileSystemWriter writer(dir / "a");
  OddPlanner planner;
  const auto alone = MakeSingleProcessCoordinator();
  EXPECT_TRUE(FailsWith(Save(held.state, writer, planner, *alone), StatusCode::kInvalidArgument,
                        {"StorageWriter::Finish", "planner_data"}));
  EXPECT_TRUE(NamesIn(dir.path()).empty());
}

/// Saves every number doubled.
class DoublingPlanner : public DefaultSavePlanner {
 public:
  Result<ItemData> ResolveData(const WriteItem& item) override {
    VARVE_ASSIGN_OR_RETURN(ItemData data, DefaultSavePlanner::ResolveData(item));
    if (!item.tensor_data) {
      return data;
    }
    const auto* numbers = static_cast<const std::uint32_t*>(data.data);
    const auto doubled =
        std::make_shared<std::vector<std::uint32_t>>(numbers, numbers + ItemBytes(item) / 4);
    for (std::uint32_t& number : *doubled) {
      number *= 2;
    }
    data.data = doubled->data();
    data.owner = doubled;
    return data;
  }
};

/// Halves the numbers that it loads, in memory of its own.
class HalvingPlanner : public DefaultLoadPlanner {
 public:
  Result<TensorMemory> ResolveTensor(const ReadItem& item) override {
    const auto buffer =
        std::make_shared<std::vector<std::uint32_t>>(item.lengths[0] * item.lengths[1]);
    TensorMemory memory;
    memory.dtype = DType::kUInt32;
    memory.data = buffer->data();
    memory.owner = buffer;
    return memory;
  }
  Status CommitTensor(const ReadItem& item, const TensorMemory& memory) override {
    VARVE_ASSIGN_OR_RETURN(const TensorMemory target, DefaultLoadPlanner::ResolveTensor(item));
    const auto* from = static_cast<const std::uint32_t*>(memory.data);
    auto* to = static_cast<std::uint32_t*>(target.data);
    for (std::uint64_t r = 0; r < item.lengths[0]; ++r) {
      for (std::uint64_t c = 0; c < item.lengths[1]; ++c) {
        to[static_cast<std::int64_t>(r) * target.strides[0] + static_cast<std::int64_t>(c)] =
            *from++ / 2;
      }
    }
    return Status::Ok();
  }
};

TEST(FileSystemBackend, APlannerMayGiveMemoryOfItsOwn) {
  const TempDir dir;
  const Held held(0, 1);
  const auto alone = MakeSingleProcessCoordinator();
  FileSystemWriter writer(dir / "a");
  DoublingPlanner doubling;
  ASSERT_TRUE(IsOk(Save(held.state, writer, doubling, *alone)));
  std::vector<std::uint32_t> memory(kRows * 7);
  const Box box{{0, 5}, {kRows, 7}};
  TargetState state;
  state.tensors.push_back({"sharded", DType::kUInt32, {kRows, kColumns}, box, memory.data(), {}});
  FileSystemReader reader(dir / "a");
  HalvingPlanner halving;
  ASSERT_TRUE(IsOk(Load(state, reader, halving, *alone)));
  EXPECT_EQ(memory, Filled(box));
  DefaultLoadPlanner plain;
  ASSERT_TRUE(IsOk(Load(state, reader, plain, *alone)));
  EXPECT_EQ(memory[1], 2 * Filled(box)[1]);
}

}  // namespace
}  // namespace varve::protocol::file_system_test
