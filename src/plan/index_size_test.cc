#include "plan/index_size.h"

#include <string>

#include <gtest/gtest.h>

#include "support/plans.h"
#include "support/status_matchers.h"

namespace varve::index_size_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::Slice;
using test::Whole;

TEST(IndexSize, CountsWhatAllRanksWrite) {
  std::vector<LocalPlan> plans(2);
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    plans[rank].tensors = {Slice("sharded", {100, 8}, rank, 2), Whole("same", {10})};
  }
  plans[0].objects = {{"step", 3, {}}};
  const auto settled = Settle(plans);
  ASSERT_TRUE(IsOk(settled));
  const ManifestCounts counts = CountIndex(plans, *settled, 4096);
  EXPECT_EQ(counts.files, 2U);
  EXPECT_EQ(counts.tensors, 2U);
  EXPECT_EQ(counts.chunks, 3U);
  EXPECT_EQ(counts.objects, 1U);
  EXPECT_EQ(counts.dims, 2U + 2 * 4 + 1 + 2);
  EXPECT_EQ(counts.blocks, 2U);
  EXPECT_EQ(CountIndex(plans, *settled, 1024).blocks, 4U);
}

TEST(IndexSize, RefusesWhatNoManifestHolds) {
  EXPECT_TRUE(IsOk(CheckManifestSize({.files = 1024, .tensors = 100'000, .chunks = 1'000'000})));
  // 16,384 ranks, each with a shard of 1,000 matrices.
  EXPECT_TRUE(IsOk(CheckManifestSize({.files = 16'384,
                                      .blocks = 16'384 * 1'024,
                                      .tensors = 1'000,
                                      .chunks = 16'384'000,
                                      .dims = 4 * 16'384'000})));
  EXPECT_TRUE(FailsWith(CheckManifestSize({.chunks = 100'000'000}), StatusCode::kInvalidArgument,
                        {"100000000 chunks", "at most 2013265905"}));
}

TEST(IndexSize, RefusesWhatARankBringsByItsCountsBeforeAnythingIsSettled) {
  LocalPlan plan;
  for (int i = 0; i < 10'000; ++i) {
    plan.tensors.push_back(Whole(std::string(9'000, 'n') + std::to_string(i), {10}));
  }
  plan.objects = {{"step", 3, {}}};
  EXPECT_TRUE(IsOk(CheckOwnHeaderSize(plan, 1)));
  for (PlannedTensor& tensor : plan.tensors) {
    tensor.of = MakeSpec(tensor.fqn() + std::string(1'000, 'n'), tensor.dtype(), tensor.shape());
  }
  EXPECT_TRUE(FailsWith(CheckOwnHeaderSize(plan, 1), StatusCode::kInvalidArgument,
                        {"10000 pieces of tensors and 1 plain values", "100 MB"}));
  EXPECT_TRUE(IsOk(CheckOwnHeaderSize(plan, 2)));  // Each rank may write half of it.
}

TEST(IndexSize, ItsLowerBoundIsBelowTheRealSize) {
  LocalPlan plan;
  plan.tensors = {Whole("w", {}), Slice("sharded", {8, 2}, 1, 2), Whole("embedding", {10, 4})};
  plan.tensors.push_back(plan.tensors[2]);
  plan.tensors[3].of = Whole("head", {10, 4}).of;
  plan.tensors[3].tied_to = 2;
  plan.objects = {{"s", 1, {}}};
  const FileIdentity identity;
  const auto file = PlanFile(plan, AssignEverything(plan), identity);
  ASSERT_TRUE(IsOk(file));
  std::uint32_t ignored = 0;
  const auto header = EncodeHeader(file->header, &ignored);
  ASSERT_TRUE(IsOk(header));
  EXPECT_LT(HeaderBytesAtLeast(plan, AssignEverything(plan)), header->find_last_not_of(' '));
  EXPECT_GT(HeaderBytesAtLeast(plan, AssignEverything(plan)), 400U);
}

}  // namespace
}  // namespace varve::index_size_test
