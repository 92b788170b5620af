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

TEST(DifferingReplicas, AreStoredAsTheLowestRankHasThemAndNamed) {
  const TempDir dir;
  for (const Format format : {Format::kVarve, Format::kDcp}) {
    const std::string path = dir / std::string(FormatName(format));
    const auto reports = SaveDiverged(3, path, {.format = format});
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
