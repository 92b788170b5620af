#include "plan/replica_pattern.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/plans.h"
#include "support/random.h"
#include "support/status_matchers.h"

namespace varve::replica_pattern_test {
namespace {

using test::IsOk;
using test::Random;
using test::Slice;
using test::Whole;

/// A tensor that is the same on all ranks, a shard of each rank, and a value.
LocalPlan Rank(std::uint64_t rank, std::uint64_t ranks) {
  LocalPlan plan;
  plan.tensors = {Whole("norm", {8}), Slice("weight", {64}, rank, ranks)};
  plan.tensors[0].fingerprint = 5;
  plan.tensors[1].fingerprint = 100 + rank;
  plan.objects = {{"step", 3, {{7}}}};
  return plan;
}

std::vector<LocalPlan> Ranks(std::uint64_t ranks) {
  std::vector<LocalPlan> plans;
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    plans.push_back(Rank(rank, ranks));
  }
  return plans;
}

/// Settles plans, and keeps their pattern and the items that each rank compares.
struct Kept {
  ReplicaPattern pattern;
  std::vector<ComparedItems> compared;

  explicit Kept(const std::vector<LocalPlan>& plans) : pattern(plans) {
    EXPECT_TRUE(IsOk(Settle(plans, Differing::kKeep, &pattern)));
    compared = pattern.Finish();
  }
  [[nodiscard]] bool IsThatOf(const std::vector<LocalPlan>& plans) const {
    std::vector<ReplicaSums> sums;
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      sums.push_back(SumsOf(plans[rank], compared.at(rank)));
    }
    return pattern.IsThatOf(sums);
  }
};

TEST(ReplicaPattern, IsTheSameWhenWhatRanksShareHasChangedOnAllOfThem) {
  std::vector<LocalPlan> plans = Ranks(3);
  const Kept kept(plans);
  EXPECT_TRUE(kept.IsThatOf(plans));
  for (LocalPlan& plan : plans) {
    plan.tensors[0].fingerprint = 6;
    plan.tensors[1].fingerprint += 1'000;
    plan.objects[0].content = {{8}};
  }
  EXPECT_TRUE(kept.IsThatOf(plans));
}

TEST(ReplicaPattern, IsAnotherWhenOneRankAloneHasAnotherContent) {
  const std::vector<LocalPlan> plans = Ranks(3);
  const Kept kept(plans);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    std::vector<LocalPlan> changed = plans;
    changed[rank].tensors[0].fingerprint = 6;
    EXPECT_FALSE(kept.IsThatOf(changed));
    changed = plans;
    changed[rank].objects[0].content = {{8}};
    EXPECT_FALSE(kept.IsThatOf(changed));
  }
}

TEST(ReplicaPattern, IsOneSumForAllThatTheSameRanksHold) {
  std::vector<LocalPlan> plans(4);
  for (std::uint64_t rank = 0; rank < 4; ++rank) {
    for (int i = 0; i < 50; ++i) {
      plans[rank].tensors.push_back(Slice("w" + std::to_string(i), {64, 2}, rank % 2, 2));
      plans[rank].tensors.back().fingerprint = 9 + rank % 2;
    }
    plans[rank].objects = {{"step", 3, {{7}}}};
  }
  const Kept kept(plans);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(kept.compared[rank].runs.size(), 2U);
    EXPECT_EQ(SumsOf(plans[rank], kept.compared[rank]).groups.size(), 2U);
    EXPECT_TRUE(SumsOf(plans[rank], kept.compared[rank]).differing.empty());
  }
  EXPECT_TRUE(kept.IsThatOf(plans));
}

TEST(ReplicaPattern, DoesNotMindTheOrderInWhichARankHoldsItems) {
  std::vector<LocalPlan> plans = Ranks(2);
  std::swap(plans[1].tensors[0], plans[1].tensors[1]);
  EXPECT_TRUE(Kept(plans).IsThatOf(plans));
}

TEST(ReplicaPattern, TellsContentsThatDifferFromThoseThatNoLongerDo) {
  std::vector<LocalPlan> plans = Ranks(3);
  for (std::uint8_t rank = 0; rank < 3; ++rank) {
    plans[rank].objects.push_back({"random state", 16, {{static_cast<std::uint8_t>(rank + 1)}}});
  }
  const Kept kept(plans);
  EXPECT_TRUE(kept.IsThatOf(plans));
  for (std::uint8_t rank = 0; rank < 3; ++rank) {
    plans[rank].objects[1].content = {{static_cast<std::uint8_t>(50 + rank)}};
  }
  EXPECT_TRUE(kept.IsThatOf(plans));
  plans[2].objects[1].content = plans[0].objects[1].content;
  EXPECT_FALSE(kept.IsThatOf(plans));
}

TEST(ReplicaPattern, IsNotKeptWhereARankHasTooManySums) {
  std::vector<LocalPlan> plans = Ranks(2);
  for (std::size_t i = 0; i <= ReplicaPattern::kMostOfARank; ++i) {
    for (std::uint8_t rank = 0; rank < 2; ++rank) {
      plans[rank].objects.push_back({"differs" + std::to_string(i), 3, {{rank}}});
    }
  }
  EXPECT_TRUE(Kept(plans).compared.empty());
}

TEST(ReplicaPattern, RefusesSumsThatNoRankWouldSend) {
  std::vector<LocalPlan> plans = Ranks(2);
  for (std::uint8_t rank = 0; rank < 2; ++rank) {
    plans[rank].objects.push_back({"random state", 16, {{static_cast<std::uint8_t>(rank + 1)}}});
  }
  const Kept kept(plans);
  std::vector<ReplicaSums> sums;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    sums.push_back(SumsOf(plans[rank], kept.compared[rank]));
  }
  EXPECT_TRUE(kept.pattern.IsThatOf(sums));
  EXPECT_FALSE(kept.pattern.IsThatOf({}));
  EXPECT_FALSE(kept.pattern.IsThatOf({sums[0]}));
  EXPECT_FALSE(kept.pattern.IsThatOf({sums[0], {sums[1].groups, {}}}));
  EXPECT_FALSE(kept.pattern.IsThatOf({sums[0], {{}, sums[1].differing}}));
  EXPECT_FALSE(kept.pattern.IsThatOf({sums[0], {{{}, {}}, sums[1].differing}}));
}

/// Changes contents at random: wherever the pattern is the same, so is the settled plan, and a
/// settled plan that has changed is never taken for the same.
TEST(ReplicaPattern, OfTheSameKindSettlesTheSamePlan) {
  Random random(7);
  int same = 0;
  for (int round = 0; round < 400; ++round) {
    const std::uint64_t ranks = 2 + random.Below(4);
    std::vector<LocalPlan> plans(ranks);
    const auto draw = [&] {
      for (std::uint64_t rank = 0; rank < ranks; ++rank) {
        for (PlannedTensor& tensor : plans[rank].tensors) {
          tensor.fingerprint = random.Below(3);
        }
        for (ObjectItem& object : plans[rank].objects) {
          object.content = {{static_cast<std::uint8_t>(random.Below(2))}};
        }
      }
    };
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      plans[rank].tensors = {Whole("a", {4}), Slice("b", {8}, rank / 2, (ranks + 1) / 2)};
      plans[rank].objects = {{"o", 3, {}}};
    }
    draw();
    const Kept kept(plans);
    const auto before = Settle(plans, Differing::kKeep);
    for (int again = 0; again < 10; ++again) {
      draw();
      if (kept.IsThatOf(plans)) {
        ++same;
        EXPECT_EQ(*Settle(plans, Differing::kKeep), *before);
      }
    }
  }
  EXPECT_GT(same, 20);
}

}  // namespace
}  // namespace varve::replica_pattern_test
