#include <gtest/gtest.h>

#include "plan/file_plan.h"
#include "plan/fold.h"
#include "plan/save_plan.h"
#include "plan/spec_table.h"
#include "support/plans.h"
#include "support/random.h"
#include "support/status_matchers.h"

namespace varve::plan_codec_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::Random;
using test::Slice;
using test::Whole;

constexpr auto kInvalid = StatusCode::kInvalidArgument;

LocalPlan SamplePlan() {
  LocalPlan plan{
      {Whole("model.w", {300, 70'000}), Slice("model.v", {9, 2}, 1, 3), Whole("scalar", {})},
      {{"lr", 9, {{1, 2, 3}}}, {"", 0, {}}},
      "structure bytes"};
  plan.tensors[1].fingerprint = 0xFEDC'BA98'7654'3210;
  return plan;
}

ChunkAssignment PartOf(std::uint32_t item, Box box) {
  return {item, std::make_shared<const Box>(std::move(box))};
}

RankAssignment SampleAssignment() {
  return {{PartOf(0, {{0, 0}, {300, 65'536}}), {2}},
          {0, 1, 500},
          "structure bytes",
          {},
          {{2, {{1, 7, 3}}}},
          {{500, {{2, 2, 1}, {4, 4, 1}}}}};
}

WriteReceipt SampleReceipt() { return {4096, 0xDEADBEEF, {1, 2, 0xFFFFFFFF}}; }

/// A plan and its encoding in two parts.
struct Sent {
  LocalPlan plan = SamplePlan();
  SpecTable specs{plan};
  Bytes shares = EncodeShares(plan, specs);
};

TEST(PlanCodec, APlanIsItsTensorsAndItsShares) {
  const Sent sent;
  const auto specs = SpecTable::Decode(sent.specs.Encode());
  ASSERT_TRUE(IsOk(specs));
  auto plan = DecodeShares(sent.shares, *specs);
  ASSERT_TRUE(IsOk(plan));
  EXPECT_TRUE(plan->structure.empty()) << "it is sent apart";
  plan->structure = sent.plan.structure;
  EXPECT_EQ(*plan, sent.plan);
}

TEST(PlanCodec, PlansOfOneTableShareTheirSpecs) {
  const Sent sent;
  const auto one = DecodeShares(sent.shares, sent.specs);
  const auto other = DecodeShares(sent.shares, sent.specs);
  ASSERT_TRUE(IsOk(one) && IsOk(other));
  EXPECT_EQ(one->tensors[1].of, other->tensors[1].of);
}

TEST(PlanCodec, RefusesSharesOfATensorThatTheTableLacks) {
  LocalPlan plan;
  plan.tensors = {Whole("w", {4})};
  EXPECT_TRUE(FailsWith(DecodeShares(Sent().shares, SpecTable(plan)), StatusCode::kDataLoss,
                        {"a tensor that is not listed"}));
}

TEST(PlanCodec, RefusesTiesToWhatThePlanLacks) {
  LocalPlan plan = SamplePlan();
  plan.tensors[0].tied_to = 3;
  const SpecTable specs(plan);
  EXPECT_TRUE(
      FailsWith(DecodeShares(EncodeShares(plan, specs), specs), StatusCode::kDataLoss, {"tied"}));
}

TEST(PlanCodec, RefusesAShardOutsideOfItsTensor) {
  LocalPlan plan;
  plan.tensors = {Whole("w", {4})};
  plan.tensors[0].box = {{2}, {3}};
  const SpecTable specs(plan);
  EXPECT_TRUE(FailsWith(DecodeShares(EncodeShares(plan, specs), specs), StatusCode::kDataLoss,
                        {"outside of its tensor"}));
}

TEST(PlanCodec, RoundTrips) {
  const auto assignment = DecodeAssignment(EncodeAssignment(SampleAssignment()));
  ASSERT_TRUE(IsOk(assignment));
  EXPECT_EQ(*assignment, SampleAssignment());
  const auto receipt = DecodeReceipt(EncodeReceipt(SampleReceipt()));
  ASSERT_TRUE(IsOk(receipt));
  EXPECT_EQ(receipt->block_crc32c, SampleReceipt().block_crc32c);
  EXPECT_EQ(receipt->header_bytes, 4096U);
  EXPECT_EQ(receipt->header_crc32c, 0xDEADBEEFU);
}

TEST(PlanCodec, RoundTripsWithNothingInIt) {
  EXPECT_EQ(*DecodeShares(EncodeShares({}, SpecTable()), SpecTable()), LocalPlan{});
  EXPECT_EQ(*DecodeAssignment(EncodeAssignment({})), RankAssignment{});
}

template <class Decode>
void ExpectEveryTruncationRejected(const Bytes& bytes, Decode decode) {
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(FailsWith(decode(std::string_view(bytes).substr(0, size)), StatusCode::kDataLoss))
        << size;
  }
  EXPECT_TRUE(FailsWith(decode(bytes + '\0'), StatusCode::kDataLoss, {"trailing"}));
}

TEST(PlanCodec, RejectsEveryTruncation) {
  const Sent sent;
  ExpectEveryTruncationRejected(sent.specs.Encode(), SpecTable::Decode);
  ExpectEveryTruncationRejected(
      sent.shares, [&](std::string_view bytes) { return DecodeShares(bytes, sent.specs); });
  ExpectEveryTruncationRejected(EncodeAssignment(SampleAssignment()), DecodeAssignment);
  ExpectEveryTruncationRejected(EncodeReceipt(SampleReceipt()), DecodeReceipt);
}

TEST(PlanCodec, SurvivesAnyChangedByte) {
  const Sent sent;
  for (const Bytes& good : {sent.shares, sent.specs.Encode(), EncodeAssignment(SampleAssignment()),
                            EncodeReceipt(SampleReceipt())}) {
    for (std::size_t at = 0; at < good.size(); ++at) {
      for (int byte = 0; byte < 256; byte += 3) {
        Bytes bytes = good;
        bytes[at] = static_cast<char>(byte);
        (void)DecodeShares(bytes, sent.specs);
        const EncodedPlan plan{&sent.specs, bytes};
        (void)FoldPlans(std::vector<EncodedPlan>(2, plan));
        (void)SpecTable::Decode(bytes);
        (void)DecodeAssignment(bytes);
        (void)DecodeReceipt(bytes);
      }
    }
  }
}

// ---- one rank's plan on its own ----

TEST(CheckLocalPlan, AcceptsAnOrdinaryPlan) {
  LocalPlan plan = SamplePlan();
  plan.objects.pop_back();
  EXPECT_TRUE(IsOk(CheckLocalPlan(plan)));
}

TEST(CheckLocalPlan, NamesWhatIsWrong) {
  const auto check = [](std::vector<PlannedTensor> tensors, std::vector<ObjectItem> objects = {}) {
    return CheckLocalPlan({std::move(tensors), std::move(objects), {}});
  };
  const PlannedTensor w = Whole("w", {4});
  EXPECT_TRUE(FailsWith(check({w, w}), kInvalid, {"tensor \"w\" appears twice at offsets [0]"}));
  EXPECT_TRUE(FailsWith(check({{"w", DType::kInt8, {4}, {{1}, {4}}}}), kInvalid,
                        {"tensor \"w\"", "outside"}));
  EXPECT_TRUE(FailsWith(check({w}, {{"w", 1, {}}}), kInvalid, {"\"w\" names both"}));
  EXPECT_TRUE(
      FailsWith(check({}, {{"x", 1, {}}, {"x", 1, {}}}), kInvalid, {"\"x\" appears twice"}));
  EXPECT_TRUE(FailsWith(check({Whole("__metadata__", {4})}), kInvalid, {"reserved"}));
  EXPECT_TRUE(
      FailsWith(check({}, {{"__varve__.values.rank00000", 1, {}}}), kInvalid, {"reserved"}));
  EXPECT_TRUE(FailsWith(check({Whole("\xFF", {4})}), kInvalid, {"UTF-8"}));
}

TEST(CheckLocalPlan, AllowsSeveralEmptyShards) {
  const PlannedTensor empty{"w", DType::kInt8, {4}, {{4}, {0}}};
  EXPECT_TRUE(IsOk(CheckLocalPlan({{empty, empty}, {}, {}})));
}

TEST(AssignEverything, TakesAllButEmptyShards) {
  const LocalPlan plan{
      {Slice("w", {9, 2}, 1, 3), {"v", DType::kInt8, {4}, {{4}, {0}}}, Whole("empty", {0})},
      {{"lr", 3, {}}, {"rng", 3, {}}},
      "s"};
  const RankAssignment got = AssignEverything(plan);
  ASSERT_EQ(got.chunks.size(), 2U);
  EXPECT_EQ(got.chunks[0], (ChunkAssignment{0}));
  EXPECT_EQ(got.chunks[1].item, 2U);
  EXPECT_EQ(got.objects, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(got.structure, "s");
}

// ---- the layout of a rank's file ----

TEST(PlanFile, KeepsChunksAndTheirSourcesTogether) {
  const LocalPlan plan{{Whole("z.int8", {10}, DType::kInt8), Whole("b", {6}), Whole("a", {6})},
                       {{"lr", 5, {}}, {"rng", 7, {}}},
                       {}};
  const RankAssignment assignment{
      {{0}, PartOf(1, {{3}, {3}}), {2}, PartOf(1, {{0}, {2}})}, {1}, "tree"};
  const auto file = PlanFile(plan, assignment, {.rank = 2, .world_size = 3});
  ASSERT_TRUE(IsOk(file));
  ASSERT_EQ(file->header.chunks.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(file->header.chunks[i].fqn(), plan.tensors[file->chunk_items[i]].fqn());
  }
  EXPECT_EQ(file->chunk_items, (std::vector<std::uint32_t>{2, 1, 1, 0}));
  EXPECT_EQ(file->header.chunks[1].box, (Box{{0}, {2}}));
  EXPECT_EQ(file->object_items, std::vector<std::uint32_t>{1});
  EXPECT_EQ(file->header.objects[0].fqn, "rng");
  EXPECT_EQ(file->header.data_bytes, 24U + 8 + 12 + 10 + 7 + 4);
  EXPECT_EQ(file->header.structure, (ByteRange{61, 65}));
}

TEST(PlanFile, RefusesAnAssignmentThatDoesNotFit) {
  const LocalPlan plan{{Slice("w", {9, 2}, 1, 3)}, {}, {}};
  EXPECT_FALSE(PlanFile(plan, {{PartOf(1, {{3, 0}, {3, 2}})}, {}, {}}, {}).ok());
  EXPECT_FALSE(PlanFile(plan, {{PartOf(0, {{3, 0}, {4, 2}})}, {}, {}}, {}).ok());
  EXPECT_FALSE(PlanFile(plan, {{PartOf(0, {{3}, {3}})}, {}, {}}, {}).ok());
  EXPECT_FALSE(PlanFile(plan, {{}, {0}, {}}, {}).ok());
}

TEST(ApplyReceipt, FillsChecksumsAndRefusesOtherCounts) {
  const LocalPlan plan{{Whole("w", {2048})}, {}, {}};
  auto file = PlanFile(plan, AssignEverything(plan), {.block_bytes = 4096});
  ASSERT_TRUE(IsOk(file));
  WriteReceipt receipt{4096, 5, {7, 8}};
  ASSERT_TRUE(IsOk(ApplyReceipt(receipt, &file->header)));
  EXPECT_EQ(file->header.block_crc32c, receipt.block_crc32c);
  receipt.block_crc32c.pop_back();
  EXPECT_TRUE(FailsWith(ApplyReceipt(receipt, &file->header), StatusCode::kInternal));
}

}  // namespace
}  // namespace varve::plan_codec_test
