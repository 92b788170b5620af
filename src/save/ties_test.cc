// Tensors that a state holds under several names: stored once, found under each.

#include "save/ties.h"

#include <numeric>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "format/data_file.h"
#include "save/data_writer.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "tensor/box.h"
#include "varve/catalogue.h"
#include "varve/checkpoint.h"
#include "varve/convert.h"

namespace varve::ties_test {
namespace {

using test::IsOk;
using test::TempDir;

constexpr std::uint64_t kRows = 200;
constexpr std::uint64_t kColumns = 1000;  // 800 KB as float32.
const Dims kShape{kRows, kColumns};

SourceTensor Source(const std::string& name, const float* data, const Box& box = WholeBox(kShape),
                    Strides strides = {}) {
  return {name, DType::kFloat32, kShape, box, HostMemory{data, std::move(strides)}};
}

std::vector<std::optional<std::uint32_t>> TiesOf(std::vector<SourceTensor> tensors) {
  State state;
  state.tensors = std::move(tensors);
  const auto plan = MakeLocalPlan(state);
  EXPECT_TRUE(IsOk(plan));
  std::vector<std::optional<std::uint32_t>> ties;
  for (const PlannedTensor& item : plan->tensors) {
    ties.push_back(item.tied_to);
  }
  return ties;
}

TEST(FindTies, TiesEqualMemoryToTheLowestName) {
  const std::vector<float> values(kRows * kColumns);
  const std::vector<float> others(kRows * kColumns);
  using Ties = std::vector<std::optional<std::uint32_t>>;
  EXPECT_EQ(TiesOf({Source("b", values.data()), Source("x", others.data()),
                    Source("a", values.data()), Source("c", values.data())}),
            (Ties{2, {}, {}, 2}));
  EXPECT_EQ(TiesOf({Source("a", values.data()),
                    Source("b", values.data(), WholeBox(kShape), {kColumns, 1})}),
            (Ties{{}, 0}));
}

TEST(FindTies, LeavesViewsOfAnotherKindAlone) {
  const std::vector<float> values(kRows * kColumns);
  SourceTensor other_type = Source("b", values.data());
  other_type.dtype = DType::kInt32;
  SourceTensor flat = Source("c", values.data());
  flat.shape = {kRows * kColumns};
  flat.box = WholeBox(flat.shape);
  const auto ties = TiesOf({Source("a", values.data()), other_type, flat,
                            Source("d", values.data(), {{0, 0}, {kRows / 2, kColumns}}),
                            Source("e", values.data(), WholeBox(kShape), {1, kRows})});
  for (const auto& tie : ties) {
    EXPECT_FALSE(tie.has_value());
  }
}

/// Saves "embed" and "head", one memory, by two ranks that hold rows or replicas.
void SaveTied(const std::string& path, bool sharded, SaveOptions options) {
  auto ranks = MakeInProcessCoordinators(2);
  std::vector<std::jthread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&] {
      const auto r = static_cast<std::uint64_t>(rank->rank());
      std::vector<float> whole(kRows * kColumns);
      std::iota(whole.begin(), whole.end(), 0.0F);
      const Box box = sharded ? Box{{r * kRows / 2, 0}, {kRows / 2, kColumns}} : WholeBox(kShape);
      const float* data = whole.data() + box.offsets[0] * kColumns;
      State state;
      state.tensors = {Source("head", data, box), Source("embed", data, box)};
      EXPECT_TRUE(IsOk(Save(state, path, options, *rank)));
    });
  }
}

void ExpectBothNames(const std::string& path) {
  auto reader = CheckpointReader::Open(path);
  ASSERT_TRUE(IsOk(reader));
  std::vector<float> expected(kRows * kColumns);
  std::iota(expected.begin(), expected.end(), 0.0F);
  for (const char* name : {"embed", "head"}) {
    std::vector<float> loaded(expected.size());
    const std::vector<TargetTensor> targets{
        {name, DType::kFloat32, kShape, WholeBox(kShape), loaded.data(), {}}};
    ASSERT_TRUE(IsOk((*reader)->ReadTensors(targets, {})));
    EXPECT_EQ(loaded, expected);
  }
}

TEST(TiedTensors, AreStoredOnceAndFoundUnderBothNames) {
  const TempDir dir;
  for (const bool sharded : {false, true}) {
    for (const bool coordinate : {true, false}) {
      for (const Format format : {Format::kVarve, Format::kDcp}) {
        if (!coordinate && format == Format::kDcp) {
          continue;
        }
        const std::string path = dir / (std::string(FormatName(format)) +
                                        (sharded ? "-sharded" : "") + (coordinate ? "" : "-apart"));
        SaveOptions options{.coordinate = coordinate, .format = format};
        if (!coordinate) {
          options.save_id = SaveId{{1}};
        }
        SaveTied(path, sharded, options);
        SCOPED_TRACE(path);
        ExpectBothNames(path);
        auto reader = CheckpointReader::Open(path);
        ASSERT_TRUE(IsOk(reader));
        const Metadata& metadata = (*reader)->metadata();
        ASSERT_EQ(metadata.tensors.size(), 2U);
        EXPECT_EQ(metadata.tensors[0].chunks, metadata.tensors[1].chunks);
        const std::uint64_t copies = coordinate || sharded ? 1 : 2;  // Of replicas each rank's.
        EXPECT_LT(metadata.TotalBytes(), copies * 4 * kRows * kColumns + (64U << 10));
        const auto verified = Verify(path);
        ASSERT_TRUE(IsOk(verified));
        EXPECT_TRUE(verified->damages.empty()) << verified->damages.front().problem;
      }
    }
  }
}

TEST(TiedTensors, OfTheDestinationAreNotMissingWhereOneOfThemIsStored) {
  const TempDir dir;
  std::vector<float> values(kRows * kColumns);
  std::iota(values.begin(), values.end(), 0.0F);
  State state;
  state.tensors = {Source("embed", values.data())};
  ASSERT_TRUE(IsOk(Save(state, dir / "c")));
  auto reader = CheckpointReader::Open(dir / "c");
  ASSERT_TRUE(IsOk(reader));
  std::vector<float> loaded(values.size());
  std::vector<float> other(values.size());
  LoadRequest request;
  for (const char* name : {"embed", "head"}) {
    request.targets.push_back({name, DType::kFloat32, kShape, WholeBox(kShape), loaded.data(), {}});
  }
  const auto report = Load(**reader, request);
  ASSERT_TRUE(IsOk(report));
  EXPECT_TRUE(report->missing.empty());
  EXPECT_EQ(loaded, values);
  request.targets[1].data = other.data();
  EXPECT_TRUE(
      test::FailsWith(Load(**reader, request), StatusCode::kInvalidArgument, {"missing", "head"}));
}

TEST(TiedTensors, SurviveARepair) {
  const TempDir dir;
  SaveTied(dir / "c", true, {});
  const auto before = CheckpointReader::Open(dir / "c");
  ASSERT_TRUE(IsOk(before));
  ASSERT_TRUE(IsOk(PosixStorage().Remove(dir / "c/manifest.bin")));
  ASSERT_TRUE(IsOk(PosixStorage().Remove(dir / "c/varve.json")));
  ASSERT_TRUE(IsOk(Repair(dir / "c")));
  const auto after = CheckpointReader::Open(dir / "c");
  ASSERT_TRUE(IsOk(after));
  EXPECT_EQ((*after)->metadata(), (*before)->metadata());
  ExpectBothNames(dir / "c");
}

TEST(TiedTensors, AreConvertedUnderBothNames) {
  const TempDir dir;
  SaveTied(dir / "c", true, {});
  for (const ConvertTarget to :
       {ConvertTarget::kVarve, ConvertTarget::kDcp, ConvertTarget::kSafetensors}) {
    const std::string out = dir / ("converted-" + std::to_string(static_cast<int>(to)));
    SCOPED_TRACE(out);
    ConvertOptions options;
    options.to = to;
    const auto converted = Convert(dir / "c", out, options);
    ASSERT_TRUE(IsOk(converted));
    EXPECT_EQ(converted->tensor_count, 2U);
    ExpectBothNames(out);
    const auto reader = CheckpointReader::Open(out);
    ASSERT_TRUE(IsOk(reader));
    const std::uint64_t copies = to == ConvertTarget::kSafetensors ? 2 : 1;  // It has no aliases.
    EXPECT_LT((*reader)->metadata().TotalBytes(), copies * 4 * kRows * kColumns + (64U << 10));
  }
}

TEST(TiedTensors, AreConvertedOneByOneWhereOnlySomeAreSelected) {
  const TempDir dir;
  SaveTied(dir / "c", true, {});
  ConvertOptions options;
  options.rename = {{"embed", "z"}};
  ASSERT_TRUE(IsOk(Convert(dir / "c", dir / "renamed", options)));
  auto reader = CheckpointReader::Open(dir / "renamed");
  ASSERT_TRUE(IsOk(reader));
  ASSERT_EQ((*reader)->metadata().tensors.size(), 2U);
  EXPECT_EQ((*reader)->metadata().tensors[1].fqn, "z");
  EXPECT_EQ((*reader)->metadata().tensors[0].chunks, (*reader)->metadata().tensors[1].chunks);
  options = {};
  options.exclude = {"embed"};
  ASSERT_TRUE(IsOk(Convert(dir / "c", dir / "one", options)));
  reader = CheckpointReader::Open(dir / "one");
  ASSERT_TRUE(IsOk(reader));
  ASSERT_EQ((*reader)->metadata().tensors.size(), 1U);
  EXPECT_TRUE(IsOk(Verify(dir / "one")));
}

TEST(TiedTensors, AreExportedUnderBothNames) {
  const TempDir dir;
  SaveTied(dir / "c", true, {});
  ASSERT_TRUE(IsOk(ExportSafetensors(dir / "c", dir / "model.safetensors", {})));
  ExpectBothNames(dir / "model.safetensors");
}

TEST(TiedTensors, LeaveFilesWithoutTiesAsTheyWere) {
  DataFileHeader header;
  header.chunks.push_back({"w", DType::kFloat32, {2}, WholeBox({2}), {}, {}});
  ASSERT_TRUE(IsOk(LayOut(&header)));
  std::uint32_t crc = 0;
  const auto plain = EncodeHeader(header, &crc);
  ASSERT_TRUE(IsOk(plain));
  EXPECT_NE(plain->find(R"(\"format\":1,)"), std::string::npos);
  EXPECT_EQ(plain->find("aliases"), std::string::npos);
}

}  // namespace
}  // namespace varve::ties_test
