// Replicas that differ: which are compared, stored and refused.

#include <cstddef>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "save/data_writer.h"
#include "save/fingerprint.h"
#include "support/fake_cuda.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "tensor/box.h"
#include "varve/async_save.h"
#include "varve/catalogue.h"
#include "varve/checkpoint.h"

namespace varve::replicas_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::TempDir;

constexpr std::uint64_t kRows = 300;
constexpr std::uint64_t kColumns = 1001;

SourceTensor Matrix(const float* data, Strides strides = {}) {
  const Dims shape{kRows, kColumns};
  return {"w", DType::kFloat32, shape, WholeBox(shape), HostMemory{data, std::move(strides)}};
}

std::uint64_t FingerprintOf(const SourceTensor& tensor,
                            CheckReplicas check = CheckReplicas::kSamples) {
  State state;
  state.tensors.push_back(tensor);
  auto plan = MakeLocalPlan(state);
  EXPECT_TRUE(IsOk(plan));
  EXPECT_TRUE(IsOk(AddFingerprints(state, check, &*plan)));
  return plan->tensors[0].fingerprint;
}

std::vector<float> Counted(std::uint64_t count = kRows * kColumns) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

TEST(Fingerprint, DoesNotDependOnTheStridesOfTheMemory) {
  const auto rows = Counted();
  std::vector<float> columns(rows.size());
  std::vector<float> spread(2 * rows.size());
  for (std::uint64_t r = 0; r < kRows; ++r) {
    for (std::uint64_t c = 0; c < kColumns; ++c) {
      columns[c * kRows + r] = rows[r * kColumns + c];
      spread[2 * (r * kColumns + c)] = rows[r * kColumns + c];
    }
  }
  for (const CheckReplicas check : {CheckReplicas::kSamples, CheckReplicas::kFull}) {
    const std::uint64_t known = FingerprintOf(Matrix(rows.data()), check);
    EXPECT_NE(known, 0U);
    EXPECT_EQ(FingerprintOf(Matrix(columns.data(), {1, kRows}), check), known);
    EXPECT_EQ(FingerprintOf(Matrix(spread.data(), {2 * kColumns, 2}), check), known);
  }
}

TEST(Fingerprint, CoversEveryByteOfASmallShardAndBothEndsOfALargeOne) {
  std::vector<float> small(16 * 1024);  // 64 KiB.
  const Dims shape{small.size()};
  const SourceTensor tensor{"w", DType::kFloat32, shape, WholeBox(shape), HostMemory{small.data()}};
  const std::uint64_t before = FingerprintOf(tensor);
  for (const std::size_t at : {std::size_t{0}, std::size_t{777}, small.size() - 1}) {
    small[at] = 1;
    EXPECT_NE(FingerprintOf(tensor), before) << at;
    small[at] = 0;
  }
  auto large = Counted();
  const std::uint64_t of_large = FingerprintOf(Matrix(large.data()));
  for (const std::size_t at : {std::size_t{0}, large.size() - 1}) {
    large[at] += 0.5F;
    EXPECT_NE(FingerprintOf(Matrix(large.data())), of_large) << at;
    large[at] -= 0.5F;
  }
}

TEST(Fingerprint, FullCheckFindsOneElementThatSamplesMiss) {
  auto values = Counted();
  const std::uint64_t samples = FingerprintOf(Matrix(values.data()));
  const std::uint64_t full = FingerprintOf(Matrix(values.data()), CheckReplicas::kFull);
  values[20] += 0.5F;  // Between the first two samples.
  EXPECT_EQ(FingerprintOf(Matrix(values.data())), samples);
  EXPECT_NE(FingerprintOf(Matrix(values.data()), CheckReplicas::kFull), full);
}

TEST(Fingerprint, IsUnknownWhereTheBytesAreNotInMemory) {
  SourceTensor produced = Matrix(nullptr);
  produced.source = Producer{[](std::uint64_t, std::span<std::byte>) { return Status::Ok(); }};
  EXPECT_EQ(FingerprintOf(produced), 0U);
}

TEST(Fingerprint, OfMemoryOfADeviceIsThatOfTheSameMemoryOfTheHost) {
  auto values = Counted();
  const std::uint64_t bytes = values.size() * sizeof(float);
  void* const memory = fake_cuda_alloc(1, bytes);
  for (const Strides& strides : {Strides{}, Strides{1, kRows}, Strides{kColumns, 1}}) {
    for (const CheckReplicas check : {CheckReplicas::kSamples, CheckReplicas::kFull}) {
      values[0] += 1;
      fake_cuda_poke(memory, values.data(), bytes);
      SourceTensor on_device = Matrix(nullptr);
      on_device.source = CudaMemory{memory, 1, nullptr, strides};
      EXPECT_EQ(FingerprintOf(on_device, check),
                FingerprintOf(Matrix(values.data(), strides), check));
    }
  }
  fake_cuda_free(memory);
}

/// A matrix on a device, whose content a stream that runs late is about to write.
class LateMatrix {
 public:
  LateMatrix(int device, std::uint8_t before, std::uint8_t then)
      : device_(device),
        stream_(fake_cuda_stream(device)),
        memory_(fake_cuda_alloc(device, kBytes)) {
    const std::string content(kBytes, static_cast<char>(before));
    fake_cuda_poke(memory_, content.data(), kBytes);
    fake_cuda_fill(device, stream_, memory_, kBytes, then, 100);
  }
  LateMatrix(const LateMatrix&) = delete;
  LateMatrix& operator=(const LateMatrix&) = delete;
  ~LateMatrix() { fake_cuda_free(memory_); }

  [[nodiscard]] SourceTensor source() const {
    SourceTensor tensor = Matrix(nullptr);
    tensor.source = CudaMemory{memory_, device_, stream_};
    return tensor;
  }

 private:
  static constexpr std::uint64_t kBytes = kRows * kColumns * sizeof(float);
  const int device_;
  void* const stream_;
  void* const memory_;
};

TEST(DifferingReplicas, OnDevicesAreComparedAfterTheWorkThatIsQueued) {
  const TempDir dir;
  for (const bool differ : {false, true}) {
    for (const bool asynchronous : {false, true}) {
      auto ranks = MakeInProcessCoordinators(2);
      auto background = MakeInProcessCoordinators(2);
      const std::string path = dir / (std::string(differ ? "d" : "e") + (asynchronous ? "a" : "s"));
      std::vector<std::jthread> threads;
      for (std::size_t rank = 0; rank < 2; ++rank) {
        threads.emplace_back([&, rank] {
          const auto number = static_cast<std::uint8_t>(rank);
          const LateMatrix late(static_cast<int>(rank), differ ? 7 : number, differ ? number : 7);
          State state;
          state.tensors.push_back(late.source());
          const std::vector<std::string> expected(rank == 0 && differ ? 1 : 0, "w");
          if (asynchronous) {
            auto stager = Stager::Make({.budget_bytes = 16 << 20}, std::move(background[rank]));
            ASSERT_TRUE(IsOk(stager));
            AsyncSaveOptions options;
            options.overlapped = true;
            const auto save = AsyncSave(std::move(state), path, options, **stager, *ranks[rank]);
            EXPECT_EQ(save.differing_tensors(), expected);
            EXPECT_TRUE(IsOk(save.done().get()));
          } else {
            const auto report = Save(state, path, {}, *ranks[rank]);
            ASSERT_TRUE(IsOk(report));
            EXPECT_EQ(report->differing_tensors, expected);
          }
        });
      }
    }
  }
}

/// Runs a save on ranks whose "w" holds their number; "same" is the same on all.
std::vector<Result<SaveReport>> SaveDiverged(int size, const std::string& path,
                                             const SaveOptions& options) {
  auto ranks = MakeInProcessCoordinators(size);
  std::vector<Result<SaveReport>> reports(ranks.size(), Internal("not run"));
  {
    std::vector<std::jthread> threads;
    for (auto& rank : ranks) {
      threads.emplace_back([&] {
        const std::vector<float> own(kRows * kColumns, static_cast<float>(rank->rank() + 1));
        const auto same = Counted();
        State state;
        state.tensors.push_back(Matrix(own.data()));
        state.tensors.push_back(Matrix(same.data()));
        state.tensors.back().fqn = "same";
        reports[static_cast<std::size_t>(rank->rank())] = Save(state, path, options, *rank);
      });
    }
  }
  return reports;
}

/// Returns a target for "w" in `memory`.
TargetTensor MatrixTarget(std::vector<float>* memory) {
  memory->assign(kRows * kColumns, -1);
  return {"w", DType::kFloat32, {kRows, kColumns}, WholeBox({kRows, kColumns}), memory->data(), {}};
}

/// Loads "w" and the value "seed" on as many ranks as `size`, and returns each rank's first element
/// and report.
std::vector<std::pair<Result<LoadReport>, float>> LoadByRanks(int size, const std::string& path,
                                                              const LoadOptions& options,
                                                              bool one_will_do = false) {
  auto ranks = MakeInProcessCoordinators(size);
  std::vector<std::pair<Result<LoadReport>, float>> loaded(ranks.size(), {Internal("not run"), 0});
  {
    std::vector<std::jthread> threads;
    for (auto& rank : ranks) {
      threads.emplace_back([&] {
        auto reader = CheckpointReader::Open(path);
        ASSERT_TRUE(IsOk(reader));
        std::vector<float> memory;
        LoadRequest request;
        request.targets.push_back(MatrixTarget(&memory));
        if (one_will_do) {
          request.one_will_do.emplace_back("w");
        }
        auto& [report, element] = loaded[static_cast<std::size_t>(rank->rank())];
        report = Load(**reader, request, options, *rank);
        EXPECT_EQ(memory, std::vector<float>(memory.size(), memory[0])) << "no mix of values";
        element = memory[0];
      });
    }
  }
  return loaded;
}

TEST(DifferingReplicas, AreAllKeptAndComeBackToTheirRanks) {
  const TempDir dir;
  const std::string path = dir / "step-1";
  const auto reports = SaveDiverged(3, path, {});
  ASSERT_TRUE(IsOk(reports[0]));
  EXPECT_EQ(reports[0]->differing_tensors, std::vector<std::string>{"w"});
  const auto verified = Verify(path);
  ASSERT_TRUE(IsOk(verified));
  EXPECT_TRUE(verified->damages.empty());
  const auto loaded = LoadByRanks(3, path, {});
  for (std::size_t rank = 0; rank < loaded.size(); ++rank) {
    ASSERT_TRUE(IsOk(loaded[rank].first));
    EXPECT_EQ(loaded[rank].second, static_cast<float>(rank + 1));
    EXPECT_EQ(loaded[rank].first->kept, std::vector<std::string>{"w"});
    EXPECT_TRUE(loaded[rank].first->merged.empty());
  }
}

TEST(DifferingReplicas, AreRebuiltFromTheDataFilesAlone) {
  const TempDir dir;
  const std::string path = dir / "step-1";
  ASSERT_TRUE(IsOk(SaveDiverged(2, path, {})[0]));
  const auto before = CheckpointReader::Open(path);
  ASSERT_TRUE(IsOk(before));
  ASSERT_EQ((*before)->metadata().tensor_variants.size(), 1U);
  ASSERT_TRUE(IsOk(PosixStorage().Remove(path + "/manifest.bin")));
  ASSERT_TRUE(IsOk(Repair(path)));
  const auto after = CheckpointReader::Open(path);
  ASSERT_TRUE(IsOk(after));
  EXPECT_EQ((*after)->metadata(), (*before)->metadata());
}

TEST(DifferingReplicas, AreRefusedToAnotherWorldUnlessOneValueWillDo) {
  const TempDir dir;
  const std::string path = dir / "step-1";
  ASSERT_TRUE(IsOk(SaveDiverged(3, path, {})[0]));
  for (const auto& [report, element] : LoadByRanks(2, path, {})) {
    EXPECT_TRUE(
        FailsWith(report, StatusCode::kInvalidArgument,
                  {"the 3 ranks that saved", "by 2: w;", "on_difference=\"first\"", "PerRank"}));
    EXPECT_EQ(element, -1) << "nothing was written";
  }
  for (const auto& [report, element] :
       LoadByRanks(3, path, {.on_difference = OnDifferenceAtLoad::kFirst})) {
    ASSERT_TRUE(IsOk(report));
    EXPECT_EQ(element, 1) << "the lowest rank's";
    EXPECT_EQ(report->merged, std::vector<std::string>{"w"});
  }
  for (const auto& [report, element] : LoadByRanks(1, path, {}, true)) {
    ASSERT_TRUE(IsOk(report));
    EXPECT_EQ(element, 1);
    EXPECT_EQ(report->merged, std::vector<std::string>{"w"});
  }
}

TEST(DifferingReplicas, OfOneShardComeBackToTheirRanksWhileTheOthersAreOneValue) {
  const TempDir dir;
  const std::string path = dir / "step-1";
  auto ranks = MakeInProcessCoordinators(4);
  std::vector<std::jthread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&] {
      // Ranks 0 and 1 hold rows 0-1, ranks 2 and 3 rows 2-3; only the last two differ.
      const auto number = static_cast<std::uint64_t>(rank->rank());
      const Box half{{number / 2 * 2, 0}, {2, 3}};
      const std::vector<float> own(6, number < 2 ? 0.5F : static_cast<float>(number));
      State state;
      state.tensors.push_back({"w", DType::kFloat32, {4, 3}, half, HostMemory{own.data(), {}}});
      state.objects.push_back({"seed", EncodeValue(Value::Int(rank->rank() / 2))});
      ASSERT_TRUE(IsOk(Save(state, path, {}, *rank)));
      auto reader = CheckpointReader::Open(path);
      ASSERT_TRUE(IsOk(reader));
      std::vector<float> whole(12, -1);
      LoadRequest request;
      request.targets = {{"w", DType::kFloat32, {4, 3}, WholeBox({4, 3}), whole.data(), {}}};
      request.objects = {"seed"};
      ASSERT_TRUE(IsOk(Load(**reader, request, {}, *rank)));
      EXPECT_EQ(whole[0], 0.5F);
      EXPECT_EQ(whole[11], number == 3 ? 3 : 2) << "rank " << number;
      const auto seed = (*reader)->ReadObjects(request.objects);
      ASSERT_TRUE(IsOk(seed));
      EXPECT_EQ(EncodeValue((*seed)[0]), EncodeValue(Value::Int(rank->rank() / 2)));
    });
  }
}

TEST(DifferingReplicas, AreStoredAsTheLowestRankHasThemWhereOneIsAskedFor) {
  const TempDir dir;
  for (const Format format : {Format::kVarve, Format::kDcp}) {
    const std::string path = dir / std::string(FormatName(format));
    const auto on_difference =
        format == Format::kVarve ? OnDifference::kFirst : OnDifference::kKeep;
    const auto reports = SaveDiverged(3, path, {.format = format, .on_difference = on_difference});
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
      ASSERT_TRUE(IsOk(reports[rank]));
      EXPECT_EQ(reports[rank]->differing_tensors,
                rank == 0 ? std::vector<std::string>{"w"} : std::vector<std::string>{});
    }
    std::vector<float> loaded(kRows * kColumns);
    auto reader = CheckpointReader::Open(path);
    ASSERT_TRUE(IsOk(reader));
    const std::vector<TargetTensor> targets{
        {"w", DType::kFloat32, {kRows, kColumns}, WholeBox({kRows, kColumns}), loaded.data(), {}}};
    ASSERT_TRUE(IsOk((*reader)->ReadTensors(targets, {})));
    EXPECT_EQ(loaded, std::vector<float>(loaded.size(), 1.0F));
  }
}

TEST(DifferingReplicas, AreRefusedOnAllRanksBeforeAnythingIsWritten) {
  const TempDir dir;
  for (const auto& report :
       SaveDiverged(2, dir / "step-1", {.on_difference = OnDifference::kError})) {
    EXPECT_TRUE(FailsWith(report, StatusCode::kFailedPrecondition,
                          {"tensors differ between the ranks that hold them: w;"}));
  }
  const auto names = PosixStorage().List(dir.path());
  ASSERT_TRUE(IsOk(names));
  EXPECT_TRUE(names->empty());
}

TEST(DifferingReplicas, OfAnAsynchronousSaveAreKnownWhenTheCallReturns) {
  const TempDir dir;
  auto ranks = MakeInProcessCoordinators(2);
  auto background = MakeInProcessCoordinators(2);
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto stager = Stager::Make({.budget_bytes = 16 << 20}, std::move(background[rank]));
      ASSERT_TRUE(IsOk(stager));
      const std::vector<float> own(kRows * kColumns, static_cast<float>(rank));
      State state;
      state.tensors.push_back(Matrix(own.data()));
      const auto save = AsyncSave(std::move(state), dir / "c", {}, **stager, *ranks[rank]);
      const std::vector<std::string> expected(rank == 0 ? 1 : 0, "w");
      EXPECT_EQ(save.differing_tensors(), expected);
      const auto& report = save.done().get();
      ASSERT_TRUE(IsOk(report));
      EXPECT_EQ(report->differing_tensors, expected);
    });
  }
}

}  // namespace
}  // namespace varve::replicas_test
