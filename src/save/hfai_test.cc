// Parts of hfai written by several ranks, on a storage in memory.

#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "interop/hfai/names.h"
#include "storages/memory.h"
#include "support/device_memory.h"
#include "support/hfai_part.h"
#include "support/ranks.h"
#include "support/status_matchers.h"
#include "varve/catalogue.h"
#include "varve/checkpoint.h"

namespace varve::hfai_test {
namespace {

using test::FailsWith;
using test::HfaiLeaf;
using test::HfaiPart;
using test::IsOk;
using test::OnEveryRank;

constexpr const char* kPath = "/latest.pt";

/// A rank's part: a model with one tensor of its own, under two names.
struct Part {
  std::vector<float> memory;
  State state;

  Part(int rank, int world, std::size_t elements) : memory(elements) {
    std::iota(memory.begin(), memory.end(), static_cast<float>(rank * 1000));
    const std::string name = "w" + std::to_string(rank);
    for (const std::string& twin : {name, name + "_tied"}) {
      const Dims shape{elements};
      state.tensors.push_back(
          {twin, DType::kFloat32, shape, WholeBox(shape), HostMemory{memory.data()}});
    }
    state.objects.push_back(HfaiPart(
        rank, world, {Value::Str(name), HfaiLeaf(0), Value::Str(name + "_tied"), HfaiLeaf(1)}));
  }
};

Status SaveParts(int world, std::size_t elements, Storage& storage) {
  const auto reports = OnEveryRank(MakeInProcessCoordinators(world), [&](Coordinator& rank) {
    const Part part(rank.rank(), rank.size(), elements);
    SaveOptions options;
    options.format = Format::kHfai;
    options.overwrite = Overwrite::kAlways;
    return Save(part.state, kPath, options, rank, storage).status();
  });
  return *reports[0];
}

std::vector<float> Read(CheckpointReader& reader, const std::string& fqn, std::size_t elements) {
  std::vector<float> memory(elements);
  const Dims shape{elements};
  const TargetTensor target{fqn, DType::kFloat32, shape, WholeBox(shape), memory.data(), {}};
  EXPECT_TRUE(IsOk(reader.ReadTensors({&target, 1}, {})));
  return memory;
}

TEST(HfaiSave, WritesAPartForEachRank) {
  constexpr std::size_t kElements = 3000;
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveParts(3, kElements, storage)));
  const auto reader = CheckpointReader::Open(kPath, storage);
  ASSERT_TRUE(IsOk(reader));
  const Metadata& metadata = (*reader)->metadata();
  EXPECT_EQ(metadata.format, Format::kHfai);
  EXPECT_EQ(metadata.world_size, 3);
  for (int rank = 0; rank < 3; ++rank) {
    const Part part(rank, 3, kElements);
    const std::string name = "model.0.w" + std::to_string(rank);
    EXPECT_EQ(Read(**reader, name, kElements), part.memory);
    EXPECT_EQ(Read(**reader, name + "_tied", kElements), part.memory);
  }
  const auto verified = Verify(kPath, storage);
  ASSERT_TRUE(IsOk(verified));
  EXPECT_TRUE(verified->clean());
}

TEST(HfaiSave, ReportsWhatCameFromDevices) {
  constexpr std::size_t kElements = 50'000;
  constexpr std::size_t kBytes = kElements * sizeof(float);
  MemoryStorage storage;
  Part part(0, 1, kElements);
  const test::OnDevice memory(
      1, std::string(reinterpret_cast<const char*>(part.memory.data()), kBytes));
  for (SourceTensor& tensor : part.state.tensors) {
    tensor.source = CudaMemory{memory.data(), 1};
  }
  SaveOptions options;
  options.format = Format::kHfai;
  const auto report = Save(part.state, kPath, options, storage);
  ASSERT_TRUE(IsOk(report));
  EXPECT_EQ(report->device_bytes, kBytes) << "tied tensors are copied once";
  EXPECT_EQ(report->pageable_bytes, 0U);
  const auto reader = CheckpointReader::Open(kPath, storage);
  ASSERT_TRUE(IsOk(reader));
  EXPECT_EQ(Read(**reader, "model.0.w0", kElements), part.memory);
  options.overwrite = Overwrite::kAlways;
  fake_cuda_fail("cuEventSynchronize", 719, 0);
  EXPECT_TRUE(FailsWith(Save(part.state, kPath, options, storage), StatusCode::kUnavailable,
                        {"tensor \"w0\"", "from CUDA device 1"}));
}

TEST(HfaiSave, StoresTiedTensorsOfAPartOnce) {
  constexpr std::size_t kElements = 100'000;
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveParts(1, kElements, storage)));
  const auto reader = CheckpointReader::Open(kPath, storage);
  ASSERT_TRUE(IsOk(reader));
  EXPECT_LT((*reader)->metadata().TotalBytes(), kElements * sizeof(float) + 4096);
}

TEST(HfaiSave, LeavesNoPartOfALargerWorld) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(SaveParts(4, 10, storage)));
  ASSERT_TRUE(IsOk(SaveParts(2, 10, storage)));
  const auto entries = storage.List(kPath);
  ASSERT_TRUE(IsOk(entries));
  EXPECT_EQ(entries->size(), 2);
}

TEST(HfaiSave, TakesPartsOnly) {
  MemoryStorage storage;
  State state;
  SaveOptions options;
  options.format = Format::kHfai;
  EXPECT_TRUE(FailsWith(Save(state, kPath, options, storage), StatusCode::kInvalidArgument,
                        {"PART_000.pt", "varve.hfai.save"}));
  Part part(0, 1, 4);
  part.state.objects[0].encoded =
      EncodeValue({.kind = ValueKind::kDict, .items = {Value::Str("model"), HfaiLeaf(7)}});
  EXPECT_TRUE(FailsWith(Save(part.state, kPath, options, storage), StatusCode::kInvalidArgument,
                        {"leaf \"7\""}));
}

}  // namespace
}  // namespace varve::hfai_test
