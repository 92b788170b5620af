// Reads from one checkpoint, and the errors for targets that could not be filled.

#include <atomic>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "storages/memory.h"
#include "support/small_state.h"
#include "support/status_matchers.h"
#include "support/values.h"

namespace varve::test::reader_test {
namespace {

constexpr const char* kPath = "/ck";
constexpr auto kDataLoss = StatusCode::kDataLoss;
constexpr auto kNotFound = StatusCode::kNotFound;
constexpr std::uint64_t kBlock = 4096;

std::unique_ptr<CheckpointReader> MustOpen(Storage& storage) {
  auto reader = CheckpointReader::Open(kPath, storage);
  EXPECT_TRUE(IsOk(reader));
  return std::move(*reader);
}

/// Returns the elements 0, 1, ... as floats.
std::vector<float> Counted(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

TargetTensor Target(const std::string& fqn, const Dims& shape, const Box& box, void* memory,
                    Strides strides = {}) {
  return {fqn, DType::kFloat32, shape, box, memory, std::move(strides)};
}

std::string DataFileOf(CheckpointReader& reader) {
  return JoinPath(reader.directory(), reader.metadata().files.at(0).name);
}

// ---- tensors ----

TEST(ReadTensors, FillsABoxOfATensorThroughStridesAndNothingElse) {
  MemoryStorage storage;
  ASSERT_TRUE(
      IsOk(SmallState().Tensor("w", DType::kFloat32, {4, 5}, Counted(20)).Save(storage, kPath)));
  // Rows 1 and 2, columns 2 and 3, transposed into memory of three rows.
  std::vector<float> memory(6, -1);
  const std::vector<TargetTensor> targets{
      Target("w", {4, 5}, {{1, 2}, {2, 2}}, memory.data(), {1, 3})};
  ASSERT_TRUE(IsOk(MustOpen(storage)->ReadTensors(targets, {})));
  EXPECT_EQ(memory, (std::vector<float>{7, 12, -1, 8, 13, -1}));
}

TEST(ReadTensors, ReadsOnlyBlocksThatATargetOverlaps) {
  MemoryStorage storage;
  constexpr std::uint64_t kElements = 64 * kBlock / sizeof(float);
  ASSERT_TRUE(IsOk(
      SmallState().Floats("w", Counted(kElements)).Save(storage, kPath, {.block_bytes = kBlock})));
  std::vector<float> memory(1);
  const std::vector<TargetTensor> targets{
      Target("w", {kElements}, {{kElements / 2}, {1}}, memory.data())};
  const auto read = MustOpen(storage)->ReadTensors(targets, {});
  ASSERT_TRUE(IsOk(read));
  EXPECT_EQ(memory[0], kElements / 2);
  EXPECT_LE(*read, 2 * kBlock);
}

TEST(ReadTensors, NamesTargetsThatHoldNewBytesWhereABlockIsDamaged) {
  MemoryStorage storage;
  constexpr std::uint64_t kElements = 4 * kBlock;  // Sixteen blocks each.
  ASSERT_TRUE(IsOk(SmallState()
                       .Floats("a.first", Counted(kElements))
                       .Floats("b.damaged", Counted(kElements))
                       .Save(storage, kPath, {.block_bytes = kBlock})));
  const auto reader = MustOpen(storage);
  ASSERT_TRUE(IsOk(Damage(storage, DataFileOf(*reader))));
  std::vector<float> first(kElements, -1);
  std::vector<float> second(kElements, -1);
  const auto target = [&](const std::string& fqn, std::vector<float>& memory) {
    return Target(fqn, {kElements}, {{0}, {kElements}}, memory.data());
  };
  EXPECT_TRUE(FailsWith(
      reader->ReadTensors(std::vector{target("a.first", first), target("b.damaged", second)},
                          {.io_threads = 1}),
      kDataLoss,
      {DataFileOf(*reader), "tensor \"b.damaged\"", "the destination is partly written"}));
  EXPECT_TRUE(IsOk(reader->ReadTensors(std::vector{target("a.first", first)}, {})))
      << "the damage is not in its blocks";
  EXPECT_EQ(first, Counted(kElements));
}

TEST(ReadTensors, SaysThatNoTargetWasWrittenWhereTheFirstBlockIsDamaged) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SmallState().Floats("w", {1, 2}).Save(storage, kPath)));
  const auto reader = MustOpen(storage);
  // The file is one block long; uncached reads are checked before they are copied.
  ASSERT_TRUE(IsOk(Damage(storage, DataFileOf(*reader))));
  std::vector<float> memory(2, -1);
  const auto read =
      reader->ReadTensors(std::vector{Target("w", {2}, {{0}, {2}}, memory.data())}, {});
  EXPECT_TRUE(FailsWith(read, kDataLoss));
  const bool untouched = memory == std::vector<float>{-1, -1};
  EXPECT_NE(read.status().message().find(untouched ? "no target was written to"
                                                   : "the destination is partly written"),
            std::string::npos)
      << read.status().message();
}

TEST(ReadTensors, RefusesTargetsBeforeAnyOfThemIsWritten) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SmallState().Floats("w", {1, 2}).Save(storage, kPath)));
  std::vector<float> memory(4, -1);
  const auto reader = MustOpen(storage);
  const TargetTensor good = Target("w", {2}, {{0}, {2}}, memory.data());
  for (const TargetTensor& bad : {Target("v", {2}, {{0}, {2}}, memory.data() + 2),
                                  Target("w", {3}, {{0}, {2}}, memory.data() + 2),
                                  Target("w", {2}, {{1}, {2}}, memory.data() + 2)}) {
    const auto read = reader->ReadTensors(std::vector{good, bad}, {});
    ASSERT_FALSE(read.ok());
    EXPECT_NE(read.status().message().find("tensor \"" + bad.fqn + "\""), std::string::npos)
        << read.status().message();
  }
  std::stop_source stop;
  stop.request_stop();
  EXPECT_TRUE(FailsWith(reader->ReadTensors(std::vector{good}, {.stop = stop.get_token()}),
                        StatusCode::kCancelled));
  EXPECT_EQ(memory, std::vector<float>(4, -1));
}

TEST(ReadTensors, ReportsProgressUpToAllBytesOfTheTargetsAndNoFurther) {
  MemoryStorage storage;
  constexpr std::uint64_t kElements = 64 * kBlock;
  ASSERT_TRUE(IsOk(
      SmallState().Floats("w", Counted(kElements)).Save(storage, kPath, {.block_bytes = kBlock})));
  std::vector<float> memory(kElements);
  std::atomic<std::uint64_t> most{0};
  LoadOptions options;
  options.io_threads = 1;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_EQ(total, kElements * sizeof(float));
    EXPECT_LE(done, total);
    most = done;
  };
  ASSERT_TRUE(IsOk(MustOpen(storage)->ReadTensors(
      std::vector{Target("w", {kElements}, {{0}, {kElements}}, memory.data())}, options)));
  EXPECT_EQ(most, kElements * sizeof(float));
}

// ---- values, structure, side files ----

TEST(ReadObjects, GivesValuesInTheOrderOfTheNames) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SmallState()
                       .Object("lr", Value::Float(0.5))
                       .Object("step", Value::Int(7))
                       .Save(storage, kPath)));
  const auto reader = MustOpen(storage);
  const auto values = reader->ReadObjects(std::vector<std::string>{"step", "lr", "step"});
  ASSERT_TRUE(IsOk(values));
  EXPECT_EQ(*values, (std::vector{Value::Int(7), Value::Float(0.5), Value::Int(7)}));
  EXPECT_TRUE(FailsWith(reader->ReadObjects(std::vector<std::string>{"step", "epoch"}), kNotFound,
                        {"/ck: object \"epoch\" is not in the checkpoint"}));
}

TEST(ReadObjects, ReadsValuesOfADcpCheckpointFromTheirArchives) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SmallState()
                       .Object("betas", Make(ValueKind::kTuple, {Value::Float(0.9)}))
                       .Save(storage, kPath, {.format = Format::kDcp})));
  const auto values = MustOpen(storage)->ReadObjects(std::vector<std::string>{"betas"});
  ASSERT_TRUE(IsOk(values));
  EXPECT_EQ(values->at(0), Make(ValueKind::kTuple, {Value::Float(0.9)}));
}

TEST(ReadObjects, RefusesDamagedValues) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SmallState().Object("step", Value::Int(7)).Save(storage, kPath)));
  const auto reader = MustOpen(storage);
  ASSERT_TRUE(IsOk(Damage(storage, DataFileOf(*reader))));
  EXPECT_TRUE(FailsWith(reader->ReadObjects(std::vector<std::string>{"step"}), kDataLoss,
                        {DataFileOf(*reader)}));
}

TEST(ReadStructure, IsNoneWhereNoneWasSaved) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SmallState().Floats("w", {1}).Save(storage, kPath)));
  const auto none = MustOpen(storage)->ReadStructure();
  ASSERT_TRUE(IsOk(none));
  EXPECT_EQ(*none, Value{});

  const Value structure = Dict({Value::Str("w"), Make(ValueKind::kTensorLeaf, "torch")});
  ASSERT_TRUE(IsOk(SmallState().Floats("w", {1}).Structure(structure).Save(
      storage, kPath, {.overwrite = Overwrite::kAlways})));
  const auto saved = MustOpen(storage)->ReadStructure();
  ASSERT_TRUE(IsOk(saved));
  EXPECT_EQ(*saved, structure);
}

TEST(ReadFile, ComparesSideFileWithItsChecksum) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(
      SmallState().Floats("w", {1}).File("tokenizer/vocab.txt", "a b c").Save(storage, kPath)));
  const auto reader = MustOpen(storage);
  const auto content = reader->ReadFile("tokenizer/vocab.txt");
  ASSERT_TRUE(IsOk(content));
  EXPECT_EQ(*content, "a b c");
  EXPECT_TRUE(FailsWith(reader->ReadFile("vocab.txt"), kNotFound, {"\"vocab.txt\""}));
  ASSERT_TRUE(IsOk(Rewrite(storage, "/ck/tokenizer/vocab.txt", "a b d")));
  EXPECT_TRUE(FailsWith(reader->ReadFile("tokenizer/vocab.txt"), kDataLoss, {"vocab.txt"}));
}

}  // namespace
}  // namespace varve::test::reader_test
