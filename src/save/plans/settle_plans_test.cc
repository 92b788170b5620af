#include "save/plans/settle_plans.h"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "plan/index_size.h"
#include "support/boxes.h"
#include "support/plans.h"
#include "support/random.h"
#include "support/status_matchers.h"

namespace varve::settle_plans_test {
namespace {

using test::BytesByRank;
using test::ExpectEveryElementOnce;
using test::Gathered;
using test::IsOk;
using test::Random;
using test::Slice;
using test::Whole;

using Plans = std::vector<LocalPlan>;

/// The outcome of SettlePlans, and the same unfolded.
struct Settled {
  SettledPlans all;
  SettledPlan plan;
  std::vector<ComparedItems> compared;
};

Settled MustSettle(const Plans& plans, Replicas replicas, bool may_fold = true) {
  Settled settled;
  auto all = SettlePlans(plans[0], Gathered(plans),
                         {.differing = Differing::kKeep,
                          .replicas = replicas,
                          .has_pattern = true,
                          .may_fold = may_fold});
  EXPECT_TRUE(IsOk(all));
  if (!all.ok()) {
    return settled;
  }
  settled.all = *std::move(all);
  settled.plan = settled.all.settled;
  settled.plan.ranks.clear();
  for (const auto& encoded : settled.all.Assignments()) {
    auto assignment = DecodeAssignment(*encoded);
    EXPECT_TRUE(IsOk(assignment));
    settled.plan.ranks.push_back(*std::move(assignment));
  }
  settled.compared = settled.all.FinishPattern();
  return settled;
}

std::string Layer(std::uint64_t i) { return "layer" + std::to_string(100 + i) + ".weight"; }

/// Plans of ranks that hold rows of `layers` tensors of `shapes` shapes, in the order of a model.
Plans OfRows(std::uint64_t ranks, std::uint64_t layers, std::uint64_t shapes) {
  Plans plans(ranks);
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    for (std::uint64_t i = 0; i < layers; ++i) {
      plans[rank].tensors.push_back(Slice(Layer(i), {ranks * 4, 8 + i % shapes}, rank, ranks));
      plans[rank].tensors.back().fingerprint = kUnhashed;
    }
  }
  return plans;
}

TEST(SettlePlans, SettlesTensorsThatAreAlikeOnEveryRankOnce) {
  const Plans plans = OfRows(8, 40, 3);
  const Settled settled = MustSettle(plans, Replicas::kWhole);
  ASSERT_EQ(settled.all.plans.size(), 8U);
  EXPECT_EQ(settled.all.plans[5].tensors.size(), 3U);
  EXPECT_EQ(settled.all.plans[5].tensors[1].alike, 13U);
  EXPECT_EQ(settled.all.hidden.size(), 37U);
  ExpectEveryElementOnce(plans, settled.plan);
  const auto assignments = settled.all.Assignments();
  EXPECT_EQ(assignments[3], assignments[4]) << "one for all ranks";
}

TEST(SettlePlans, WritesTheFilesThatPlansOfEachTensorWould) {
  const Plans plans = OfRows(8, 40, 3);
  const Settled folded = MustSettle(plans, Replicas::kWhole);
  const Settled plain = MustSettle(plans, Replicas::kWhole, false);
  EXPECT_EQ(plain.all.plans[5].tensors.size(), 40U);
  EXPECT_EQ(folded.plan, plain.plan);
  EXPECT_EQ(folded.compared, plain.compared);
}

TEST(SettlePlans, LeavesATensorAloneThatAnotherRankShardsOtherwise) {
  Plans plans = OfRows(4, 8, 1);
  for (const std::size_t rank : {2, 3}) {
    plans[rank].tensors[5].box = {{rank == 2 ? 12U : 8U, 0}, {4, 8}};
  }
  const Settled settled = MustSettle(plans, Replicas::kWhole);
  EXPECT_EQ(settled.all.plans[0].tensors.size(), 2U);
  ExpectEveryElementOnce(plans, settled.plan);
}

TEST(SettlePlans, NamesATensorOfWhichAPartIsMissing) {
  Plans plans = OfRows(4, 8, 1);
  for (PlannedTensor& item : plans[2].tensors) {
    item.box.sizes[0] = 3;
  }
  const auto settled = SettlePlans(plans[0], Gathered(plans), {.may_fold = true});
  EXPECT_TRUE(test::FailsWith(settled, StatusCode::kInvalidArgument,
                              {Layer(0), "no rank holds [11:12, 0:8]"}));
}

TEST(SettlePlans, WantsFingerprintsWhereShardsThatWereLeftOutHaveReplicas) {
  Plans plans = OfRows(4, 8, 1);
  for (PlannedTensor& item : plans[3].tensors) {
    item.box = plans[2].tensors[0].box;
  }
  const auto settled = SettlePlans(plans[0], Gathered(plans), {.may_fold = true});
  ASSERT_FALSE(settled.ok()) << "rows are missing";
  for (LocalPlan& plan : plans) {
    for (PlannedTensor& item : plan.tensors) {
      item.box = WholeBox(item.shape());
    }
  }
  EXPECT_TRUE(MustSettle(plans, Replicas::kWhole).all.settled.lacks_fingerprints);
}

/// Two halves of the ranks hold the same rows.
Plans Replicated(std::uint64_t ranks, std::uint64_t layers, std::uint64_t shapes) {
  Plans plans = OfRows(ranks / 2, layers, shapes);
  for (LocalPlan& plan : plans) {
    for (PlannedTensor& item : plan.tensors) {
      item.fingerprint = 5 + (item.box.offsets[0] * 1000) + item.fqn().back();
    }
  }
  const Plans half = plans;
  plans.insert(plans.end(), half.begin(), half.end());
  return plans;
}

TEST(SettlePlans, SharesTensorsThatAreAlikeAmongTheRanksThatHoldThem) {
  const Plans plans = Replicated(8, 40, 2);
  const Settled settled = MustSettle(plans, Replicas::kWhole);
  EXPECT_EQ(settled.all.plans[0].tensors.size(), 2U);
  ExpectEveryElementOnce(plans, settled.plan);
  EXPECT_EQ(settled.plan.ranks[0].chunks.size(), 20U);
  EXPECT_EQ(settled.plan.ranks[4].chunks.size(), 20U);
}

TEST(SettlePlans, KeepsBothValuesOfOneOfManyTensorsThatAreAlike) {
  Plans plans = Replicated(8, 40, 2);
  plans[6].tensors[17].fingerprint = 99;
  const Settled settled = MustSettle(plans, Replicas::kWhole);
  EXPECT_EQ(settled.plan.differing_tensors, std::vector<std::string>{Layer(17)});
  EXPECT_EQ(settled.all.plans[0].tensors.size(), 40U);
  EXPECT_EQ(settled.plan.ranks[6].tensor_variants.size(), 1U);
}

/// Plans of a job: stages of a pipeline, each sharded over some ranks by rows or columns, with
/// replicas of the whole or without, and odd tensors among the others.
Plans RandomPlans(Random& random) {
  const std::uint64_t stages = random.Between(1, 2);
  const std::uint64_t copies = random.Between(1, 3);
  const std::uint64_t parts = random.Between(1, 3);
  const std::uint64_t shapes = random.Between(1, 3);
  const bool uneven = random.Between(0, 2) == 0;
  Plans plans(stages * copies * parts);
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    LocalPlan& plan = plans[rank];
    const std::uint64_t stage = rank / (copies * parts);
    const std::uint64_t part = rank % parts;
    for (std::uint64_t i = 0; i < 12; ++i) {
      const std::uint64_t rows = parts * 4 - (uneven && i % shapes == 0 ? 1 : 0);
      const std::uint64_t begin = std::min(part * 4, rows);
      const std::uint64_t end = std::min(begin + 4, rows);
      const Dims shape{rows, 4 + i % shapes};
      plan.tensors.emplace_back(Layer(i) + std::to_string(stage), DType::kFloat32, shape,
                                Box{{begin, 0}, {end - begin, shape[1]}});
      if (i % 5 == 4) {
        plan.tensors.emplace_back("norm" + Layer(i) + std::to_string(stage), DType::kBFloat16,
                                  Dims{7}, WholeBox({7}));
      }
    }
    plan.tensors.push_back(Whole("shared embedding", {parts * 4, 4}));
    if (stage == 0) {
      plan.tensors.emplace_back("in two shards", DType::kFloat32, Dims{2 * parts, 4},
                                Box{{part, 0}, {1, 4}});
      plan.tensors.emplace_back(plan.tensors.back().of, Box{{parts + part, 0}, {1, 4}});
    }
    plan.objects = {{"rng of rank " + std::to_string(rank), 7, {{1}}}, {"step", 3, {{2}}}};
    for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
      const PlannedTensor& item = plan.tensors[i];
      plan.tensors[i].fingerprint =
          copies == 1 && parts > 1 && !(item.box == WholeBox(item.shape()))
              ? kUnhashed
              : 1000 + 31 * item.fqn().size() + item.box.offsets[0];
    }
  }
  return plans;
}

bool HoldsPattern(const Settled& settled, const Plans& plans) {
  std::vector<ReplicaSums> sums;
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    sums.push_back(SumsOf(plans[rank], settled.compared[rank]));
  }
  return settled.all.pattern->IsThatOf(sums);
}

TEST(SettlePlans, GivesEachRankAsManyBytesAsPlansOfEachTensorWould) {
  Random random(7);
  int folded_some = 0;
  for (int round = 0; round < 300; ++round) {
    Plans plans = RandomPlans(random);
    const Settled folded = MustSettle(plans, Replicas::kWhole);
    const Settled plain = MustSettle(plans, Replicas::kWhole, false);
    ExpectEveryElementOnce(plans, folded.plan);
    EXPECT_EQ(BytesByRank(plans, folded.plan), BytesByRank(plans, plain.plan));
    ExpectEveryElementOnce(plans, MustSettle(plans, Replicas::kCut).plan);
    const auto counted = CountIndex(folded.all.plans, folded.all.settled, 4096, folded.all.hidden);
    const auto wanted = CountIndex(plans, plain.plan, 4096);
    EXPECT_EQ(counted.tensors, wanted.tensors);
    EXPECT_EQ(counted.chunks, wanted.chunks);
    EXPECT_EQ(counted.name_bytes, wanted.name_bytes);
    EXPECT_EQ(counted.dims, wanted.dims);
    EXPECT_EQ(counted.blocks, wanted.blocks);
    folded_some += folded.all.hidden.empty() ? 0 : 1;
    ASSERT_EQ(folded.compared.size(), plans.size());
    EXPECT_TRUE(HoldsPattern(folded, plans));
    if (plans.size() > 1) {
      plans[1].tensors[random.Between(0, 11)].fingerprint += 1;
      EXPECT_EQ(HoldsPattern(folded, plans), HoldsPattern(plain, plans));
    }
    if (HasFailure()) {
      FAIL() << "round " << round;
    }
  }
  EXPECT_GT(folded_some, 150);
}

/// As of a rank whose tensors are produced while they are written.
TEST(SettlePlans, SeesOneOfManyTensorsThatDiffersLaterWhereARankHasNoFingerprints) {
  Plans plans(3);
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      plans[rank].tensors.push_back(Whole(Layer(i), {4, 4}));
      plans[rank].tensors.back().fingerprint = rank == 0 ? 0 : 50 + i;
    }
  }
  const Settled settled = MustSettle(plans, Replicas::kWhole);
  EXPECT_TRUE(settled.plan.differing_tensors.empty());
  EXPECT_TRUE(HoldsPattern(settled, plans));
  plans[2].tensors[3].fingerprint = 99;
  EXPECT_FALSE(HoldsPattern(settled, plans));
}

TEST(SettlePlans, NamesTheRankWhosePlanIsMalformed) {
  const Plans plans = OfRows(4, 8, 1);
  GatheredPlans::Taken taken;
  taken.own_table = std::make_shared<const SpecTable>(plans[0]);
  taken.structures.resize(plans.size());
  for (std::size_t rank = 1; rank < plans.size(); ++rank) {
    const Bytes shares = EncodeShares(plans[rank], SpecTable(plans[rank]));
    taken.plans.Add(taken.own_table, shares.substr(0, shares.size() - (rank == 2 ? 1 : 0)));
  }
  EXPECT_TRUE(test::FailsWith(SettlePlans(plans[0], taken, {.may_fold = true}),
                              StatusCode::kDataLoss, {"plan of rank 2"}));
}

TEST(SettlePlans, NamesAPlainValueThatOtherRanksHoldAsOneOfManyTensors) {
  Plans plans = OfRows(4, 8, 1);
  plans[2].objects = {{Layer(6), 3, {}}};
  EXPECT_TRUE(test::FailsWith(SettlePlans(plans[0], Gathered(plans), {.may_fold = true}),
                              StatusCode::kInvalidArgument,
                              {Layer(6), "is a tensor on rank 0 and a plain value on rank 2"}));
}

TEST(SettlePlans, LeavesTiedTensorsAlone) {
  Plans plans = OfRows(4, 8, 1);
  for (LocalPlan& plan : plans) {
    plan.tensors[6].tied_to = 2;
  }
  const Settled settled = MustSettle(plans, Replicas::kWhole);
  EXPECT_EQ(settled.all.plans[0].tensors.size(), 3U);
  EXPECT_EQ(settled.plan.ranks[1].aliases, std::vector<std::uint32_t>{6});
  EXPECT_EQ(settled.plan, MustSettle(plans, Replicas::kWhole, false).plan);
}

}  // namespace
}  // namespace varve::settle_plans_test
