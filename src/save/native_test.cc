#include "save/native.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "format/manifest.h"
#include "plan/file_plan.h"
#include "publish/commit.h"
#include "save/plans/settle_plans.h"
#include "support/plans.h"
#include "support/random.h"
#include "support/status_matchers.h"

namespace varve::native_test {
namespace {

using test::IsOk;
using test::Random;

using Plans = std::vector<LocalPlan>;

/// How the ranks of a job hold the tensors of a group: as cells of a grid, in so many copies.
struct Sharding {
  std::uint64_t rows = 1;
  std::uint64_t columns = 1;
  bool reversed = false;  ///< The first rank holds the last cell.
  bool by_columns = false;
};

Box BoxOf(const Sharding& sharding, const Dims& shape, std::uint64_t rank) {
  const std::uint64_t cells = sharding.rows * sharding.columns;
  std::uint64_t cell = rank % cells;
  cell = sharding.reversed ? cells - 1 - cell : cell;
  const std::uint64_t row = sharding.by_columns ? cell % sharding.rows : cell / sharding.columns;
  const std::uint64_t column = sharding.by_columns ? cell / sharding.rows : cell % sharding.columns;
  const auto slice = [](std::uint64_t size, std::uint64_t i, std::uint64_t count) {
    const std::uint64_t each = (size + count - 1) / count;
    const std::uint64_t begin = std::min(i * each, size);
    return std::pair(begin, std::min(begin + each, size) - begin);
  };
  const auto [top, height] = slice(shape[0], row, sharding.rows);
  const auto [left, width] = slice(shape[1], column, sharding.columns);
  return {{top, left}, {height, width}};
}

Sharding RandomSharding(Random& random, std::uint64_t ranks) {
  std::vector<std::uint64_t> divisors;
  for (std::uint64_t i = 1; i <= ranks; ++i) {
    if (ranks % i == 0) {
      divisors.push_back(i);
    }
  }
  Sharding sharding;
  sharding.rows = divisors[random.Below(divisors.size())];
  sharding.columns = random.Below(3) == 0 ? ranks / sharding.rows : 1;
  sharding.reversed = random.Below(8) == 0;
  sharding.by_columns = random.Below(8) == 0;
  return sharding;
}

/// Returns the plans of a stage in which most ranks hold the same tensors, and a few others too.
Plans RandomStage(Random& random, const std::string& stage) {
  Plans plans(random.Between(1, 24));
  const std::uint64_t ranks = plans.size();
  const std::uint64_t groups = random.Between(1, 3);
  for (std::uint64_t group = 0; group < groups; ++group) {
    const Sharding sharding = RandomSharding(random, ranks);
    const std::uint64_t uneven = random.Below(4) == 0 ? 1 : 0;
    const Dims shape{sharding.rows * random.Between(1, 3) * 2 - uneven, sharding.columns * 4};
    const DType dtype = random.Below(2) == 0 ? DType::kFloat32 : DType::kBFloat16;
    const std::uint64_t tensors = random.Between(1, 4);
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      for (std::uint64_t i = 0; i < tensors; ++i) {
        const std::string name = stage + std::to_string(i) + ".of" + std::to_string(group);
        plans[rank].tensors.emplace_back(name, dtype, shape, BoxOf(sharding, shape, rank));
        plans[rank].tensors.back().fingerprint = 7;
        if (random.Below(200) == 0) {
          plans[rank].tensors.back().fingerprint = 8;  // A replica that differs is a variant.
        }
      }
    }
  }
  for (std::uint64_t odd = random.Below(3); odd > 0; --odd) {
    LocalPlan& plan = plans[random.Below(ranks)];
    const std::string name = stage + "odd" + std::to_string(odd);
    switch (random.Below(3)) {
      case 0: plan.tensors.push_back(test::Whole(name, {3, 5})); break;
      case 1: plan.objects.push_back({name, random.Below(40), {{1}}}); break;
      default:
        plan.tensors.push_back(plan.tensors[0]);
        plan.tensors.back().of = MakeSpec(name, plan.tensors[0].dtype(), plan.tensors[0].shape());
        plan.tensors.back().box = WholeBox(plan.tensors[0].shape());
    }
  }
  const bool own_values = random.Below(2) == 0;
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    plans[rank].objects.push_back({"step", 3, {{2}}});
    if (own_values) {
      plans[rank].objects.push_back(
          {stage + "rng" + std::to_string(rank), 5 + random.Below(3), {{4}}});
    }
  }
  return plans;
}

/// Plans of one stage, or of two of a pipeline.
Plans RandomPlans(Random& random) {
  Plans plans = RandomStage(random, "layer");
  if (random.Below(3) == 0) {
    const Plans more = RandomStage(random, "later");
    plans.insert(plans.end(), more.begin(), more.end());
  }
  return plans;
}

/// Returns the save of these plans as the coordinator has it when all have written.
SettledSave Settled(const Plans& plans) {
  SettledSave save;
  save.identity.world_size = static_cast<std::uint32_t>(plans.size());
  save.identity.coordinated = true;
  save.identity.block_bytes = 64;
  const GatheredPlans::Taken taken = test::Gathered(plans);
  auto others = std::make_shared<RankPlans>(taken.plans);
  const auto settled =
      SettlePlans(plans[0], taken,
                  {.differing = Differing::kKeep, .replicas = Replicas::kWhole, .may_fold = true});
  EXPECT_TRUE(IsOk(settled));
  const auto assignments = settled->Assignments();
  others->SetAssignments(assignments);
  save.plans = {plans[0]};
  save.settled.ranks = {DecodeAssignment(*assignments[0]).value()};
  save.others = others;
  return save;
}

/// Returns the header of each rank's file, whose checksums are made up, and adds its receipt.
std::vector<CheckedHeader> Write(const SettledSave& save, Random& random,
                                 std::vector<std::string>* receipts) {
  std::vector<CheckedHeader> headers;
  const Status status = save.ForEachRank(
      [&](std::uint32_t rank, const LocalPlan& plan, const RankAssignment& assignment) -> Status {
        FileIdentity identity = save.identity;
        identity.rank = rank;
        VARVE_ASSIGN_OR_RETURN(FilePlan file, PlanFile(plan, assignment, identity));
        WriteReceipt receipt;
        // A rank's header may be as long as others' or not; so are the places of all its bytes.
        receipt.header_bytes = random.Below(12) == 0 ? 8192 : 4096;
        receipt.header_crc32c = static_cast<std::uint32_t>(random.Below(1U << 31U));
        for (std::uint64_t at = 0; at < file.header.data_bytes; at += identity.block_bytes) {
          receipt.block_crc32c.push_back(static_cast<std::uint32_t>(random.Below(1U << 31U)));
        }
        VARVE_RETURN_IF_ERROR(ApplyReceipt(receipt, &file.header));
        headers.push_back({std::move(file.header), receipt.header_bytes, receipt.header_crc32c});
        receipts->push_back(EncodeReceipt(receipt));
        return Status::Ok();
      });
  EXPECT_TRUE(IsOk(status));
  return headers;
}

/// Expects that the index of a save of these plans is the merge of its files' headers.
void ExpectMergeOfHeaders(const Plans& plans, std::uint64_t seed) {
  Random random(seed);
  const SettledSave save = Settled(plans);
  std::vector<std::string> receipts;
  const auto merged = MergeHeaders(Write(save, random, &receipts));
  ASSERT_TRUE(IsOk(merged));
  const auto wanted = NativeIndex(*merged);
  const auto made = MakeNativeIndex(save, receipts, save.identity);
  ASSERT_TRUE(IsOk(made));
  ASSERT_EQ(made->files, merged->files);
  ASSERT_EQ(made->index.size(), wanted->size());
  for (std::size_t i = 0; i < wanted->size(); ++i) {
    ASSERT_EQ(made->index[i].content, (*wanted)[i].content);
  }
}

TEST(NativeIndex, IsTheMergeOfAllHeadersThoughMostFilesAreNotPlannedAgain) {
  Random random(5);
  for (std::uint64_t round = 0; round < 400; ++round) {
    SCOPED_TRACE(round);
    ASSERT_NO_FATAL_FAILURE(ExpectMergeOfHeaders(RandomPlans(random), round));
  }
}

// Ranks of both stages hold three tensors in two families, which are other families in each.
TEST(NativeIndex, TakesNoFamiliesOfAnotherStageOfAPipeline) {
  const auto cell = [](std::uint64_t top, std::uint64_t left) { return Box{{top, left}, {2, 4}}; };
  const auto add = [](LocalPlan* plan, const char* name, Dims shape, Box box) {
    plan->tensors.emplace_back(name, DType::kFloat32, std::move(shape), std::move(box));
  };
  Plans plans(14);
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    add(&plans[rank], "a0", {4, 4}, cell(2 * rank, 0));
    add(&plans[rank], "a1", {4, 4}, cell(2 * rank, 0));
    add(&plans[rank], "a2", {4, 8}, {{2 * rank, 0}, {2, 8}});
  }
  // Cells of b1, which is cut into 4 x 3; b0 and b2 are cut into 4 x 2, in order.
  const std::vector<std::uint64_t> numbers{0, 1, 2, 3, 6, 7, 9, 10, 4, 5, 8, 11};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    LocalPlan& plan = plans[2 + i];
    const Box other = cell(2 * (i / 2), 4 * (i % 2));
    if (i < 8) {
      add(&plan, "b0", {8, 8}, other);
    }
    add(&plan, "b1", {8, 12}, cell(2 * (numbers[i] / 3), 4 * (numbers[i] % 3)));
    if (i < 8) {
      add(&plan, "b2", {8, 8}, other);
    }
  }
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    ExpectMergeOfHeaders(plans, seed);
  }
}

TEST(NativeIndex, NamesTheRankWhoseReceiptIsOfAnotherFile) {
  Plans plans(8);
  for (std::uint64_t rank = 0; rank < plans.size(); ++rank) {
    plans[rank].tensors.push_back(test::Slice("w", {16, 32}, rank, 8));
  }
  const SettledSave save = Settled(plans);
  std::vector<std::string> receipts;
  Random random(1);
  Write(save, random, &receipts);
  receipts[6] = EncodeReceipt({.header_bytes = 4096, .header_crc32c = 1, .block_crc32c = {1}});
  EXPECT_TRUE(test::FailsWith(MakeNativeIndex(save, receipts, save.identity), StatusCode::kInternal,
                              {"rank 6"}));
}

}  // namespace
}  // namespace varve::native_test
