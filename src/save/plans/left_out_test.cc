// Fingerprints that ranks leave out of their plans, and what that must not hide.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/counting_ranks.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "varve/checkpoint.h"
#include "varve/options.h"

namespace varve::left_out_test {
namespace {

using test::IsOk;
using test::MakeCountingRanks;
using test::TempDir;

constexpr std::uint64_t kRows = 8;
constexpr std::uint64_t kColumns = 16;
constexpr int kTensors = 100;

/// A rank of a job: so many rows of every tensor from `row` on, all with one value.
struct Held {
  std::uint64_t row = 0;
  std::uint64_t rows = 0;
  float value = 0;
};

/// The report of a first save, and the messages that each rank sent in it.
struct Saved {
  SaveReport report;
  std::vector<int> messages;       ///< How many.
  std::vector<std::size_t> first;  ///< Bytes of the first message.
};

/// Saves by ranks that have never saved. `more`: a rank with a tensor that the others do not have.
Saved SaveFirst(const std::vector<Held>& held, SaveOptions options = {}, int more = -1) {
  const TempDir dir;
  const std::vector<float> one(kColumns, 1);
  std::vector<State> states(held.size());
  std::vector<std::vector<float>> memory;
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    const auto& [row, rows, value] = held[rank];
    memory.emplace_back(rows * kColumns, value);
    for (int i = 0; i < kTensors; ++i) {
      states[rank].tensors.push_back({"layer" + std::to_string(i),
                                      DType::kFloat32,
                                      {kRows, kColumns},
                                      {{row, 0}, {rows, kColumns}},
                                      HostMemory{memory.back().data(), {}}});
    }
    if (static_cast<int>(rank) == more) {
      states[rank].tensors.push_back(
          {"more", DType::kFloat32, {kColumns}, {{0}, {kColumns}}, HostMemory{one.data(), {}}});
    }
  }
  const auto ranks = MakeCountingRanks(held.size());
  std::vector<Result<SaveReport>> reports(held.size(), Internal("not run"));
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < held.size(); ++rank) {
      threads.emplace_back(
          [&, rank] { reports[rank] = Save(states[rank], dir / "x", options, *ranks[rank]); });
    }
  }
  Saved saved;
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    EXPECT_TRUE(IsOk(reports[rank]));
    saved.messages.push_back(ranks[rank]->messages());
    saved.first.push_back(ranks[rank]->sizes().front());
  }
  if (reports[0].ok()) {
    saved.report = *reports[0];
  }
  return saved;
}

TEST(FingerprintsLeftOut, AreThoseOfShardsThatRanksHoldAlone) {
  const Saved apart = SaveFirst({{0, 4, 1}, {4, 4, 1}});
  EXPECT_EQ(apart.messages[1], 2) << "the plan and the receipt";
  const Saved pairs = SaveFirst({{0, 4, 1}, {0, 4, 1}, {4, 4, 1}, {4, 4, 1}});
  EXPECT_EQ(pairs.messages[1], 2) << "half of a tensor is more than one of four ranks would have";
  EXPECT_GE(pairs.first[1], apart.first[1] + kTensors * sizeof(std::uint64_t));
}

TEST(FingerprintsLeftOut, AreTakenWhereSomeOtherRankHoldsTheShardAfterAll) {
  for (const auto check : {CheckReplicas::kSamples, CheckReplicas::kFull}) {
    SaveOptions options;
    options.check_replicas = check;
    // The first two ranks hold the same quarter, and the last one more than its part.
    const Saved same = SaveFirst({{0, 2, 1}, {0, 2, 1}, {2, 2, 1}, {4, 4, 1}}, options);
    EXPECT_TRUE(same.report.differing_tensors.empty());
    EXPECT_EQ(same.messages[1], 3) << "they are asked for";
    const Saved differ = SaveFirst({{0, 2, 1}, {0, 2, 7}, {2, 2, 1}, {4, 4, 1}}, options);
    EXPECT_EQ(differ.report.differing_tensors.size(), static_cast<std::size_t>(kTensors));
  }
}

TEST(FingerprintsLeftOut, AreAskedForAfterTensorsThatTheCoordinatorDoesNotKnow) {
  const Saved differ = SaveFirst({{0, 2, 1}, {0, 2, 7}, {2, 2, 1}, {4, 4, 1}}, {}, 2);
  EXPECT_EQ(differ.report.differing_tensors.size(), static_cast<std::size_t>(kTensors));
  EXPECT_EQ(differ.messages[1], 4) << "the plan, tensors of rank 2, fingerprints, the receipt";
}

}  // namespace
}  // namespace varve::left_out_test
