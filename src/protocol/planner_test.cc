#include "varve/protocol/planner.h"

#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/status_matchers.h"
#include "tensor/box.h"
#include "varve/protocol/storage_layer.h"

namespace varve::protocol::planner_test {
namespace {

using varve::test::FailsWith;
using varve::test::IsOk;

/// Floats that count up from 0, with any shape that a test gives them.
struct Memory {
  std::vector<float> floats = std::vector<float>(100'000);
  Memory() { std::iota(floats.begin(), floats.end(), 0.0F); }

  [[nodiscard]] SourceTensor Tensor(const std::string& fqn, const Dims& shape,
                                    const Box& box) const {
    SourceTensor tensor;
    tensor.fqn = fqn;
    tensor.dtype = DType::kFloat32;
    tensor.shape = shape;
    tensor.box = box;
    tensor.source = HostMemory{floats.data()};
    return tensor;
  }
  [[nodiscard]] SourceTensor Tensor(const std::string& fqn, const Dims& shape) const {
    return Tensor(fqn, shape, WholeBox(shape));
  }
};

/// Returns the global plan of ranks with these states.
Result<GlobalSavePlan> PlanOf(const std::vector<State>& states,
                              DefaultSavePlannerOptions options = {}) {
  std::vector<SavePlan> plans;
  DefaultSavePlanner planner(options);
  for (const State& state : states) {
    VARVE_RETURN_IF_ERROR(
        planner.SetUpPlanner(state, std::nullopt, {.is_coordinator = plans.empty()}));
    VARVE_ASSIGN_OR_RETURN(plans.emplace_back(), planner.CreateLocalPlan());
  }
  return planner.CreateGlobalPlan(std::move(plans));
}

std::uint64_t BytesOf(const SavePlan& plan) {
  std::uint64_t bytes = 0;
  for (const WriteItem& item : plan.items) {
    bytes += ItemBytes(item);
  }
  return bytes;
}

State ReplicatedState(const Memory& memory) {
  State state;
  for (const char* name : {"a", "b", "c", "d"}) {
    state.tensors.push_back(memory.Tensor(name, {100, 100}));
  }
  state.objects.push_back({"step", EncodeValue(Value::Int(7))});
  return state;
}

TEST(DefaultSavePlanner, SpreadsReplicasOverTheRanksThatHoldThem) {
  const Memory memory;
  const auto plan = PlanOf(std::vector<State>(4, ReplicatedState(memory)));
  ASSERT_TRUE(IsOk(plan));
  for (const SavePlan& one : plan->plans) {
    EXPECT_NEAR(static_cast<double>(BytesOf(one)), 40'000, 40);
  }
}

TEST(DefaultSavePlanner, GivesReplicasToTheLowestRankWhenAsked) {
  const Memory memory;
  const auto plan =
      PlanOf(std::vector<State>(3, ReplicatedState(memory)), {.dedup_save_to_lowest_rank = true});
  ASSERT_TRUE(IsOk(plan));
  EXPECT_EQ(plan->plans[0].items.size(), 5U);
  EXPECT_TRUE(plan->plans[1].items.empty());
  EXPECT_TRUE(plan->plans[2].items.empty());
}

TEST(DefaultSavePlanner, TheLowestRankMeansTheLowestThatHoldsIt) {
  const Memory memory;
  std::vector<State> states(3);
  for (const std::size_t rank : {1U, 2U}) {
    states[rank].tensors.push_back(memory.Tensor("w", {8, 4}));
    states[rank].tensors.push_back(memory.Tensor("empty", {0, 4}));
  }
  const auto plan = PlanOf(states, {.dedup_save_to_lowest_rank = true});
  ASSERT_TRUE(IsOk(plan));
  EXPECT_TRUE(plan->plans[0].items.empty());
  EXPECT_EQ(plan->plans[1].items.size(), 2U);
  EXPECT_TRUE(plan->plans[2].items.empty());
}

TEST(DefaultSavePlanner, LargeReplicasAreCutAndMetadataSaysWhere) {
  const Memory memory;
  State state;
  state.tensors.push_back(memory.Tensor("w", {1000, 100}));
  const auto plan = PlanOf({state, state});
  ASSERT_TRUE(IsOk(plan));
  const TensorStorageMetadata* tensor = plan->metadata.FindTensor("w");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->size, (Dims{1000, 100}));
  EXPECT_EQ(tensor->chunks.size(), 2U);
  EXPECT_TRUE(SubtractAll(WholeBox(tensor->size), tensor->chunks).empty());
  for (const SavePlan& one : plan->plans) {
    for (const WriteItem& item : one.items) {
      EXPECT_EQ(item.type, WriteItemType::kShard);
      ASSERT_TRUE(item.index.index.has_value());
      EXPECT_EQ(tensor->chunks[*item.index.index], item.tensor_data->chunk);
    }
  }
}

TEST(DefaultSavePlanner, ResolvesAPieceOfStridedMemory) {
  const Memory memory;
  State state;
  SourceTensor tensor = memory.Tensor("w", {8, 4}, {{2, 0}, {6, 4}});
  tensor.source = HostMemory{memory.floats.data(), {1, 10}};  // Column by column.
  state.tensors.push_back(tensor);
  DefaultSavePlanner planner;
  ASSERT_TRUE(IsOk(planner.SetUpPlanner(state, std::nullopt, {.is_coordinator = true})));
  WriteItem item;
  item.index.fqn = "w";
  item.tensor_data = TensorWriteData{{{3, 1}, {2, 2}}, {DType::kFloat32}, {8, 4}};
  const auto data = planner.ResolveData(item);
  ASSERT_TRUE(IsOk(data));
  const std::string content = ContentOf(item, *data);
  const std::vector<float> expected = {11, 21, 12, 22};
  ASSERT_EQ(content.size(), 16U);
  EXPECT_EQ(std::memcmp(content.data(), expected.data(), 16), 0);
  item.tensor_data->chunk.offsets = {1, 1};  // Reaches above the shard.
  EXPECT_TRUE(FailsWith(planner.ResolveData(item), StatusCode::kNotFound, {"\"w\"", "[1:3, 1:3]"}));
}

TEST(DefaultSavePlanner, SaysWhichTensorIsWrong) {
  const Memory memory;
  State state;
  state.tensors.push_back(memory.Tensor("w", {8, 4}, {{4, 0}, {5, 4}}));
  EXPECT_TRUE(FailsWith(PlanOf({state}), StatusCode::kInvalidArgument, {"\"w\"", "outside"}));
  state.tensors[0].box = {{0, 0}, {4, 4}};
  EXPECT_TRUE(FailsWith(PlanOf({state}), StatusCode::kInvalidArgument,
                        {"\"w\"", "no rank holds [4:8, 0:4]"}));
  State other = state;
  other.tensors[0].shape = {9, 4};
  other.tensors[0].box = {{4, 0}, {5, 4}};
  EXPECT_TRUE(FailsWith(PlanOf({state, other}), StatusCode::kInvalidArgument,
                        {"\"w\"", "rank 1", "rank 0"}));
  other.tensors[0].shape = {8, 4};
  other.tensors[0].box = {{3, 0}, {5, 4}};
  EXPECT_TRUE(FailsWith(PlanOf({state, other}, {.dedup_save_to_lowest_rank = true}),
                        StatusCode::kInvalidArgument, {"\"w\"", "overlap"}));
  state.tensors[0].source = HostMemory{};
  EXPECT_TRUE(FailsWith(PlanOf({state}), StatusCode::kInvalidArgument, {"\"w\"", "no memory"}));
}

TEST(DefaultSavePlanner, KeepsTheContainersUnlessToldNotTo) {
  const Memory memory;
  State state = ReplicatedState(memory);
  Value leaf;
  leaf.kind = ValueKind::kObjectLeaf;
  Value dict;
  dict.kind = ValueKind::kDict;
  dict.items = {Value::Str("step"), leaf};
  state.structure = EncodeValue(dict);
  EXPECT_EQ(PlanOf({state, state})->metadata.planner_data, state.structure);
  EXPECT_EQ(PlanOf({state, state}, {.flatten_state_dict = false})->metadata.planner_data, "");
}

StateMetadata StoredRows() {
  StateMetadata metadata;
  metadata.state_dict_metadata["w"] =
      TensorStorageMetadata{{DType::kFloat32}, {6, 4}, {{{0, 0}, {2, 4}}, {{2, 0}, {4, 4}}}};
  metadata.state_dict_metadata["step"] = BytesStorageMetadata();
  return metadata;
}

TargetTensor Target(const std::string& fqn, const Dims& shape, const Box& box, float* data) {
  TargetTensor target;
  target.fqn = fqn;
  target.dtype = DType::kFloat32;
  target.shape = shape;
  target.box = box;
  target.data = data;
  return target;
}

Result<LoadPlan> LoadPlanOf(TargetState state, const StateMetadata& metadata,
                            DefaultLoadPlannerOptions options = {}) {
  DefaultLoadPlanner planner(options);
  VARVE_RETURN_IF_ERROR(planner.SetUpPlanner(state, metadata, true));
  return planner.CreateLocalPlan();
}

TEST(DefaultLoadPlanner, ReadsFromEachChunkTheCommonPart) {
  std::vector<float> memory(8);
  const auto plan =
      LoadPlanOf({{Target("w", {6, 4}, {{1, 2}, {4, 2}}, memory.data())}, {}}, StoredRows());
  ASSERT_TRUE(IsOk(plan));
  ASSERT_EQ(plan->items.size(), 2U);
  EXPECT_EQ(plan->items[0].storage_offsets, (Dims{1, 2}));
  EXPECT_EQ(plan->items[0].dest_offsets, (Dims{0, 0}));
  EXPECT_EQ(plan->items[0].lengths, (Dims{1, 2}));
  EXPECT_EQ(plan->items[1].storage_index.offset, (Dims{2, 0}));
  EXPECT_EQ(plan->items[1].storage_offsets, (Dims{0, 2}));
  EXPECT_EQ(plan->items[1].dest_offsets, (Dims{1, 0}));
  EXPECT_EQ(plan->items[1].lengths, (Dims{3, 2}));
}

TEST(DefaultLoadPlanner, NamesAllThatIsMissingUnlessPartialLoadsAreAllowed) {
  std::vector<float> memory(24);
  const TargetState state{{Target("w", {6, 4}, WholeBox({6, 4}), memory.data()),
                           Target("v", {2}, WholeBox({2}), memory.data())},
                          {{"step", ""}, {"epoch", ""}}};
  EXPECT_TRUE(FailsWith(LoadPlanOf(state, StoredRows()), StatusCode::kNotFound,
                        {"v, epoch", "allow_partial_load"}));
  const auto plan = LoadPlanOf(state, StoredRows(), {.allow_partial_load = true});
  ASSERT_TRUE(IsOk(plan));
  EXPECT_EQ(plan->items.size(), 3U);
}

TEST(DefaultLoadPlanner, RefusesOtherSizesTypesAndKindsEvenInPartialLoads) {
  std::vector<float> memory(24);
  const DefaultLoadPlannerOptions partial{.allow_partial_load = true};
  EXPECT_TRUE(FailsWith(LoadPlanOf({{Target("w", {6, 3}, WholeBox({6, 3}), memory.data())}, {}},
                                   StoredRows(), partial),
                        StatusCode::kInvalidArgument,
                        {"w (stored float32[6, 4], wanted float32[6, 3])"}));
  TargetTensor other = Target("w", {6, 4}, WholeBox({6, 4}), memory.data());
  other.dtype = DType::kInt32;
  EXPECT_TRUE(FailsWith(LoadPlanOf({{other}, {}}, StoredRows(), partial),
                        StatusCode::kInvalidArgument, {"wanted int32[6, 4]"}));
  EXPECT_TRUE(FailsWith(
      LoadPlanOf({{Target("step", {1}, WholeBox({1}), memory.data())}, {{"w", ""}}}, StoredRows(),
                 partial),
      StatusCode::kInvalidArgument, {"stored a value, wanted a tensor", "stored a tensor"}));
}

TEST(DefaultLoadPlanner, AHoleInTheCheckpointIsDataLoss) {
  std::vector<float> memory(24);
  StateMetadata metadata = StoredRows();
  std::get<TensorStorageMetadata>(metadata.state_dict_metadata["w"]).chunks.pop_back();
  EXPECT_TRUE(
      FailsWith(LoadPlanOf({{Target("w", {6, 4}, WholeBox({6, 4}), memory.data())}, {}}, metadata),
                StatusCode::kDataLoss, {"\"w\"", "[2:6, 0:4]"}));
}

TEST(DefaultLoadPlanner, ResolvesIntoThePieceThatTheItemNames) {
  std::vector<float> memory(100);
  TargetState state{{Target("w", {6, 4}, {{1, 2}, {4, 2}}, memory.data())}, {}};
  state.tensors[0].strides = {10, 1};
  const StateMetadata metadata = StoredRows();
  DefaultLoadPlanner planner;
  ASSERT_TRUE(IsOk(planner.SetUpPlanner(state, metadata, true)));
  auto plan = planner.CreateLocalPlan();
  ASSERT_TRUE(IsOk(plan));
  for (const std::optional<std::uint64_t> hint : {plan->items[1].dest_index.index, {}}) {
    plan->items[1].dest_index.index = hint;
    const auto piece = planner.ResolveTensor(plan->items[1]);
    ASSERT_TRUE(IsOk(piece));
    EXPECT_EQ(piece->data, memory.data() + 10);
    EXPECT_EQ(piece->strides, (Strides{10, 1}));
  }
  plan->items[1].lengths = {4, 2};  // One row too many.
  EXPECT_TRUE(FailsWith(planner.ResolveTensor(plan->items[1]), StatusCode::kInvalidArgument,
                        {"\"w\"", "outside"}));
}

}  // namespace
}  // namespace varve::protocol::planner_test
