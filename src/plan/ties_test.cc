#include "plan/ties.h"

#include <gtest/gtest.h>

#include "plan/file_plan.h"
#include "plan/index_size.h"
#include "support/boxes.h"
#include "support/plans.h"
#include "support/status_matchers.h"

namespace varve::ties_test {
namespace {

using test::IsOk;
using test::Slice;
using test::Whole;

PlannedTensor Tied(PlannedTensor item, std::uint32_t to) {
  item.tied_to = to;
  return item;
}

/// Returns the plans of two ranks, each with its rows of "a" and of "b", which is the same memory.
std::vector<LocalPlan> TiedRows() {
  std::vector<LocalPlan> plans(2);
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    plans[rank].tensors = {Slice("a", {100, 8}, rank, 2), Tied(Slice("b", {100, 8}, rank, 2), 0),
                           Whole("c", {5})};
  }
  return plans;
}

TEST(Ties, OfAllHoldersMakeOneAnAliasOfTheOther) {
  const auto plans = TiedRows();
  EXPECT_EQ(SettleTies(plans), (Aliases{{"b", "a"}}));
  const auto settled = Settle(plans);
  ASSERT_TRUE(IsOk(settled));
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    for (const ChunkAssignment& chunk : settled->ranks[rank].chunks) {
      EXPECT_NE(chunk.item, 1U);
    }
    EXPECT_EQ(settled->ranks[rank].aliases, std::vector<std::uint32_t>{1});
    const auto file = PlanFile(plans[rank], settled->ranks[rank], {.world_size = 2});
    ASSERT_TRUE(IsOk(file));
    EXPECT_EQ(file->header.aliases, (std::vector<TensorAlias>{{"b", "a"}}));
  }
  const ManifestCounts counts = CountIndex(plans, *settled, 4096);
  EXPECT_EQ(counts.tensors, 3U);
  EXPECT_EQ(counts.chunks, 5U);
}

TEST(Ties, ThatOneHolderDoesNotHaveAreNone) {
  auto plans = TiedRows();
  plans[1].tensors[1].tied_to.reset();
  EXPECT_EQ(SettleTies(plans), Aliases{});
  plans = TiedRows();
  plans[1].tensors.erase(plans[1].tensors.begin());  // Rank 1 has no "a".
  plans[1].tensors[0].tied_to.reset();
  EXPECT_EQ(SettleTies(plans), Aliases{});
  plans = TiedRows();
  plans[1].tensors.push_back(Slice("a", {100, 8}, 0, 2));  // More of "a" than of "b".
  EXPECT_EQ(SettleTies(plans), Aliases{});
}

TEST(Ties, ThatRanksSeeDifferentlyAreNone) {
  std::vector<LocalPlan> plans(2);
  plans[0].tensors = {Whole("a", {5}), Tied(Whole("b", {5}), 0), Tied(Whole("c", {5}), 0)};
  plans[1].tensors = {Whole("a", {5}), Whole("b", {5}), Tied(Whole("c", {5}), 1)};
  EXPECT_EQ(SettleTies(plans), Aliases{});
}

TEST(Ties, AreAlsoOfRanksThatHoldNothing) {
  auto plans = TiedRows();
  plans.emplace_back();
  plans.push_back({{Slice("a", {100, 8}, 3, 2), Slice("b", {100, 8}, 3, 2)}, {}, {}});  // Empty.
  EXPECT_EQ(SettleTies(plans), (Aliases{{"b", "a"}}));
  EXPECT_TRUE(IsOk(Settle(plans)));
}

TEST(Ties, OfReplicasThatDifferAreNamedByBothNames) {
  std::vector<LocalPlan> plans(2);
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    plans[rank].tensors = {Whole("a", {50'000}), Tied(Whole("b", {50'000}), 0)};
    plans[rank].tensors[0].fingerprint = plans[rank].tensors[1].fingerprint = 1 + rank;
  }
  const auto settled = Settle(plans);
  ASSERT_TRUE(IsOk(settled));
  EXPECT_EQ(settled->differing_tensors, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(settled->ranks[0].aliases.size(), 1U);
  EXPECT_TRUE(settled->ranks[1].aliases.empty());
}

TEST(Ties, OfValuesOfSomeRanksAreAliasesOfThose) {
  std::vector<LocalPlan> plans(2);
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    plans[rank].tensors = {Whole("a", {50'000}), Tied(Whole("b", {50'000}), 0)};
    plans[rank].tensors[0].fingerprint = plans[rank].tensors[1].fingerprint = 1 + rank;
  }
  const auto settled = Settle(plans, Differing::kKeep);
  ASSERT_TRUE(IsOk(settled));
  const auto file = PlanFile(plans[1], settled->ranks[1], {.rank = 1, .world_size = 2});
  ASSERT_TRUE(IsOk(file));
  ASSERT_EQ(file->header.chunks.size(), 1U);
  EXPECT_EQ(file->header.chunks[0].fqn(), "__varve__.ranks.1.a");
  EXPECT_EQ(file->header.aliases,
            (std::vector<TensorAlias>{{"__varve__.ranks.1.b", "__varve__.ranks.1.a"}}));
}

TEST(Ties, OfARankThatSavesAloneAreAliasesToo) {
  const auto plans = TiedRows();
  const RankAssignment assignment = AssignEverything(plans[0]);
  EXPECT_EQ(assignment.chunks.size(), 2U);
  EXPECT_EQ(assignment.aliases, std::vector<std::uint32_t>{1});
}

}  // namespace
}  // namespace varve::ties_test
