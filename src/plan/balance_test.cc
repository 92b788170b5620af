// How evenly settled plans spread the bytes, on layouts of real jobs.

#include <cstdio>

#include <gtest/gtest.h>

#include "plan/save_plan.h"
#include "support/plans.h"
#include "support/sanitized.h"
#include "support/status_matchers.h"

namespace varve::balance_test {
namespace {

using test::IsOk;
using test::Slice;
using test::Whole;

/// Settles, checks that every element is written once, and prints and returns max/mean.
double Imbalance(const char* what, const std::vector<LocalPlan>& plans) {
  const auto settled = Settle(plans);
  EXPECT_TRUE(IsOk(settled));
  if (!settled.ok()) {
    return 1e9;
  }
  test::ExpectEveryElementOnce(plans, *settled);
  std::size_t most_chunks = 0;
  for (const RankAssignment& rank : settled->ranks) {
    most_chunks = std::max(most_chunks, rank.chunks.size());
  }
  const double imbalance = test::MaxOverMean(test::BytesByRank(plans, *settled));
  std::printf("[ FIGURE   ] %s: fullest rank / mean = %.4f, at most %zu chunks a rank\n", what,
              imbalance, most_chunks);
  return imbalance;
}

TEST(Balance, Llama8BReplicatedEverywhereIsWithinFivePercent) {
  LocalPlan plan;
  for (const auto& [fqn, shape] : test::Llama8B()) {
    plan.tensors.push_back(Whole(fqn, shape));
  }
  for (const std::size_t ranks : {8, 64, 256}) {
    const std::string what = "Llama-8B fp32, DDP, " + std::to_string(ranks) + " ranks";
    EXPECT_LE(Imbalance(what.c_str(), std::vector<LocalPlan>(ranks, plan)), 1.05);
  }
}

TEST(Balance, Llama8BHybridShardedEightByEightIsWithinFivePercent) {
  std::vector<LocalPlan> plans(64);
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    for (const auto& [fqn, shape] : test::Llama8B()) {
      plans[rank].tensors.push_back(Slice(fqn, shape, rank % 8, 8));
    }
  }
  EXPECT_LE(Imbalance("Llama-8B fp32, HSDP 8 x 8", plans), 1.05);
}

// A part sharded, a part replicated: the replicated part fills what the shards left uneven.
TEST(Balance, ReplicatedTensorsEvenOutUnevenShards) {
  std::vector<LocalPlan> plans(8);
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    plans[rank].tensors = {Slice("uneven", {1100, 4096}, rank, 8), Whole("a", {2000, 4096}),
                           Whole("b", {1000, 1024})};
  }
  EXPECT_LE(Imbalance("uneven shards and replicas, 8 ranks", plans), 1.05);
}

// Experts are stacked along a short first dimension; rows of it are far larger than a fair share.
TEST(Balance, TensorsWithAShortFirstDimensionAreCutInside) {
  const std::vector<LocalPlan> plans(16, {{Whole("experts", {3, 4096, 1024})}, {}, {}});
  EXPECT_LE(Imbalance("3 x 4096 x 1024, 16 ranks", plans), 1.05);
}

TEST(Balance, ManySmallTensorsAreWithinFivePercent) {
  LocalPlan plan;
  for (unsigned i = 0; i < 2000; ++i) {
    plan.tensors.push_back(Whole("t" + std::to_string(i), {100 + 37 * (i % 211)}));
  }
  EXPECT_LE(Imbalance("2000 small tensors, 16 ranks", std::vector<LocalPlan>(16, plan)), 1.05);
}

// A plan that every rank is sent whole grows with the square of the ranks: with some thousand of
// them the exchange runs into its deadline.
TEST(Balance, OfManyRanksEachIsToldItsOwnPartAlone) {
  std::vector<LocalPlan> plans(test::kSanitized ? 256 : 2048);
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    for (const auto& [fqn, shape] : test::Llama8B()) {
      plans[rank].tensors.push_back(Slice(fqn, shape, rank, plans.size()));
    }
    plans[rank].tensors.push_back(Whole("step", {1}));
  }
  const auto settled = Settle(plans);
  ASSERT_TRUE(IsOk(settled));
  test::ExpectEveryElementOnce(plans, *settled);
  std::size_t largest = 0;
  for (const RankAssignment& rank : settled->ranks) {
    largest = std::max(largest, EncodeAssignment(rank).size());
  }
  EXPECT_LE(largest, 4 * plans[0].tensors.size());
}

}  // namespace
}  // namespace varve::balance_test
