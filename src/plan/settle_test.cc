#include <algorithm>
#include <map>
#include <span>
#include <string>

#include <gtest/gtest.h>

#include "format/variants.h"
#include "plan/file_plan.h"
#include "plan/save_plan.h"
#include "support/boxes.h"
#include "support/plans.h"
#include "support/random.h"
#include "support/status_matchers.h"
#include "support/values.h"

namespace varve::settle_test {
namespace {

using test::ExpectEveryElementOnce;
using test::FailsWith;
using test::IsOk;
using test::Random;
using test::Slice;
using test::Whole;

constexpr auto kInvalid = StatusCode::kInvalidArgument;

SettledPlan MustSettle(const std::vector<LocalPlan>& plans) {
  auto settled = Settle(plans);
  EXPECT_TRUE(IsOk(settled));
  return settled.ok() ? *settled : SettledPlan{std::vector<RankAssignment>(plans.size()), {}};
}

ObjectItem Object(std::string fqn, std::uint8_t content = 0) {
  return {std::move(fqn), 3, {{content}}};
}

TEST(Settle, WritesEachReplicatedTensorOnce) {
  const LocalPlan plan{{Whole("a", {10, 10}), Whole("b", {7})}, {}, {}};
  const std::vector<LocalPlan> plans(4, plan);
  ExpectEveryElementOnce(plans, MustSettle(plans));
}

TEST(Settle, LeavesShardsWithTheRankThatHoldsThem) {
  std::vector<LocalPlan> plans(3);
  for (std::uint64_t rank = 0; rank < 3; ++rank) {
    plans[rank].tensors = {Slice("w", {100, 8}, rank, 3)};
  }
  const SettledPlan settled = MustSettle(plans);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(settled.ranks[rank].chunks.size(), 1U);
    EXPECT_EQ(settled.ranks[rank].chunks[0].part, nullptr) << "all of the shard";
  }
}

TEST(Settle, LeavesReplicasWholeWhereTheyMustBeOneRanks) {
  std::vector<LocalPlan> plans(3);
  for (LocalPlan& plan : plans) {
    plan.tensors = {Whole("a", {1 << 20}), Whole("b", {1 << 20}), Whole("c", {1 << 20})};
  }
  const auto settled = Settle(plans, Differing::kFirst, nullptr, Replicas::kWhole);
  ASSERT_TRUE(IsOk(settled));
  for (const RankAssignment& rank : settled->ranks) {
    ASSERT_EQ(rank.chunks.size(), 1U);  // Each rank writes one of them.
    EXPECT_EQ(rank.chunks[0].part, nullptr);
  }
}

TEST(Settle, SplitsAReplicatedTensorLargerThanAFairShare) {
  const std::vector<LocalPlan> plans(4, {{Whole("big", {4096, 1024})}, {}, {}});
  const SettledPlan settled = MustSettle(plans);
  ExpectEveryElementOnce(plans, settled);
  for (const std::uint64_t bytes : test::BytesByRank(plans, settled)) {
    EXPECT_EQ(bytes, 4096U * 1024);
  }
}

/// Returns plans of ranks that hold the same tensors, with a fingerprint for each rank's `name`.
std::vector<LocalPlan> Replicated(const std::vector<PlannedTensor>& tensors,
                                  const std::string& name,
                                  const std::vector<std::uint64_t>& fingerprints) {
  std::vector<LocalPlan> plans(fingerprints.size(), LocalPlan{tensors, {}, {}});
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    for (PlannedTensor& item : plans[rank].tensors) {
      item.fingerprint = item.fqn() == name ? fingerprints[rank] : 5;
    }
  }
  return plans;
}

TEST(Settle, GivesAShardWhoseReplicasDifferWholeToTheLowestRankThatHoldsIt) {
  const std::vector<PlannedTensor> tensors{Whole("big", {4096, 1024}),
                                           Whole("other", {4096, 1024})};
  const auto plans = Replicated(tensors, "big", {7, 7, 8, 7});
  const SettledPlan settled = MustSettle(plans);
  EXPECT_EQ(settled.differing_tensors, std::vector<std::string>{"big"});
  ExpectEveryElementOnce(plans, settled);
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    for (const ChunkAssignment& chunk : settled.ranks[rank].chunks) {
      if (chunk.item == 0) {
        EXPECT_EQ(rank, 0U);
        EXPECT_EQ(chunk.BoxIn(plans[rank]), tensors[0].box);
      }
    }
  }
}

/// Returns the box of each chunk by its rank, and the ranks of the variant that it is of.
std::map<std::string, std::vector<std::string>> WrittenBy(const std::vector<LocalPlan>& plans,
                                                          const SettledPlan& settled) {
  std::map<std::string, std::vector<std::string>> written;
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    const RankAssignment& mine = settled.ranks[rank];
    for (const ChunkAssignment& chunk : mine.chunks) {
      const auto* variant = FindVariant(mine.tensor_variants, chunk.item);
      written[plans[rank].tensors[chunk.item].fqn()].push_back(
          std::to_string(rank) + " " + ToString(chunk.BoxIn(plans[rank])) +
          (variant == nullptr ? "" : " of " + ToString(std::span(variant->ranks))));
    }
  }
  return written;
}

TEST(Settle, KeepsEachValueOfAShardWhoseReplicasDifferOnceAndWhole) {
  const auto plans = Replicated({Whole("big", {4096, 1024})}, "big", {7, 8, 9, 8, 7, 8});
  const auto settled = Settle(plans, Differing::kKeep);
  ASSERT_TRUE(IsOk(settled));
  EXPECT_EQ(settled->differing_tensors, std::vector<std::string>{"big"});
  EXPECT_EQ(WrittenBy(plans, *settled)["big"],
            (std::vector<std::string>{"0 [0:4096, 0:1024]", "1 [0:4096, 0:1024] of 1-5:2",
                                      "2 [0:4096, 0:1024] of 2"}));
}

TEST(Settle, SpreadsValuesOfManyTensorsOverTheRanksThatHoldThem) {
  std::vector<PlannedTensor> tensors;
  for (int i = 0; i < 4; ++i) {
    tensors.push_back(Whole("expert" + std::to_string(i), {1024, 64}));
  }
  std::vector<LocalPlan> plans(4, LocalPlan{tensors, {}, {}});
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    for (PlannedTensor& item : plans[rank].tensors) {
      item.fingerprint = 1 + rank % 2;
    }
  }
  const auto settled = Settle(plans, Differing::kKeep);
  ASSERT_TRUE(IsOk(settled));
  for (const RankAssignment& mine : settled->ranks) {
    EXPECT_EQ(mine.chunks.size(), 2U);
  }
}

TEST(Settle, LetsTheLowestRankWriteItsOwnWhereAFingerprintIsUnknown) {
  const auto plans = Replicated({Whole("w", {50'000})}, "w", {0, 7, 8, 7});
  const auto settled = Settle(plans, Differing::kKeep);
  ASSERT_TRUE(IsOk(settled));
  EXPECT_EQ(WrittenBy(plans, *settled)["w"],
            (std::vector<std::string>{"0 [0:50000]", "2 [0:50000] of 2"}));
}

TEST(Settle, KeepsValuesOfOneShardOfATensorAlone) {
  std::vector<LocalPlan> plans(4);
  for (std::uint64_t rank = 0; rank < 4; ++rank) {
    plans[rank].tensors = {Slice("w", {100, 8}, rank / 2, 2)};
    plans[rank].tensors[0].fingerprint = 1 + rank / 2;
  }
  plans[3].tensors[0].fingerprint = 9;
  const auto settled = Settle(plans, Differing::kKeep);
  ASSERT_TRUE(IsOk(settled));
  EXPECT_EQ(WrittenBy(plans, *settled)["w"],
            (std::vector<std::string>{"0 [0:50, 0:8]", "2 [50:100, 0:8]", "3 [50:100, 0:8] of 3"}));
}

TEST(Settle, ComparesReplicasOfOneShardAndNotShardsOfOneTensor) {
  std::vector<LocalPlan> plans(4);
  for (std::uint64_t rank = 0; rank < 4; ++rank) {
    plans[rank].tensors = {Slice("w", {100, 8}, rank / 2, 2)};
    plans[rank].tensors[0].fingerprint = 1 + rank / 2;
  }
  EXPECT_TRUE(MustSettle(plans).differing_tensors.empty());
  plans[3].tensors[0].fingerprint = 9;
  EXPECT_EQ(MustSettle(plans).differing_tensors, std::vector<std::string>{"w"});
}

TEST(Settle, TakesReplicasForEqualWhereAFingerprintIsUnknown) {
  const auto plans = Replicated({Whole("big", {4096, 1024})}, "big", {0, 7, 0, 7});
  const SettledPlan settled = MustSettle(plans);
  EXPECT_TRUE(settled.differing_tensors.empty());
  EXPECT_EQ(settled.ranks[3].chunks.size(), 1U);
}

TEST(Settle, SaysWhereReplicasLackFingerprintsThatWereLeftOut) {
  std::vector<LocalPlan> plans(4);
  for (std::uint64_t rank = 0; rank < 4; ++rank) {
    plans[rank].tensors = {Slice("w", {100, 8}, rank, 4), Whole("norm", {8})};
    plans[rank].tensors[0].fingerprint = kUnhashed;
  }
  EXPECT_FALSE(MustSettle(plans).lacks_fingerprints);
  plans[1].tensors[1].fingerprint = kUnhashed;
  EXPECT_TRUE(MustSettle(plans).lacks_fingerprints);
}

TEST(Settle, DoesNotCutSmallTensors) {
  std::vector<PlannedTensor> tensors;
  for (int i = 0; i < 40; ++i) {
    tensors.push_back(Whole("bias." + std::to_string(i), {4096}));  // 16 KiB.
  }
  const std::vector<LocalPlan> plans(4, {tensors, {}, {}});
  const SettledPlan settled = MustSettle(plans);
  for (const RankAssignment& rank : settled.ranks) {
    EXPECT_EQ(rank.chunks.size(), 10U);
  }
}

TEST(Settle, GivesReplicatedBytesToRanksWithLessOfTheirOwn) {
  std::vector<LocalPlan> plans(3, {{Whole("shared", {1024, 1024})}, {}, {}});
  plans[0].tensors.push_back(Whole("own", {1024, 1024}));
  const auto bytes = test::BytesByRank(plans, MustSettle(plans));
  EXPECT_EQ(bytes[0], 4U << 20);
  EXPECT_EQ(bytes[1] + bytes[2], 4U << 20);
  EXPECT_EQ(bytes[1], bytes[2]);
}

TEST(Settle, SkipsEmptyShardsAndKeepsEmptyTensors) {
  std::vector<LocalPlan> plans(4);
  for (std::uint64_t rank = 0; rank < 4; ++rank) {
    plans[rank].tensors = {Slice("w", {2, 8}, rank, 4), Whole("nothing", {0, 5}),
                           Whole("scalar", {})};
  }
  const SettledPlan settled = MustSettle(plans);
  std::size_t chunks = 0;
  for (const RankAssignment& rank : settled.ranks) {
    chunks += rank.chunks.size();
  }
  EXPECT_EQ(chunks, 4U) << "two slices, one empty tensor, one scalar";
}

TEST(Settle, GivesTheSameAnswerEveryTime) {
  Random random(1);
  std::vector<LocalPlan> plans(5);
  for (LocalPlan& plan : plans) {
    for (int i = 0; i < 20; ++i) {
      plan.tensors.push_back(
          Whole("t" + std::to_string(i), {100U + static_cast<unsigned>(i), 512}));
    }
  }
  EXPECT_EQ(MustSettle(plans), MustSettle(plans));
}

// Ranks may list their tensors in any order: who writes what stays the same.
TEST(Settle, DoesNotDependOnTheOrderOfARanksTensors) {
  std::vector<LocalPlan> plans(3);
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    for (int i = 0; i < 12; ++i) {
      plans[rank].tensors.push_back(Whole("shared" + std::to_string(i), {64, 1024}));
      plans[rank].tensors.push_back(Slice("cut" + std::to_string(i), {64, 16}, rank, 3));
    }
  }
  const auto by_name = [](const std::vector<LocalPlan>& given) {
    const SettledPlan settled = MustSettle(given);
    std::vector<std::vector<std::pair<std::string, std::string>>> written(given.size());
    for (std::size_t rank = 0; rank < given.size(); ++rank) {
      for (const ChunkAssignment& chunk : settled.ranks[rank].chunks) {
        written[rank].emplace_back(given[rank].tensors[chunk.item].fqn(),
                                   ToString(chunk.BoxIn(given[rank])));
      }
      std::sort(written[rank].begin(), written[rank].end());
    }
    return written;
  };
  const auto want = by_name(plans);
  Random random(2);
  for (int i = 0; i < 20; ++i) {
    for (LocalPlan& plan : plans) {
      random.Shuffle(&plan.tensors);
    }
    ASSERT_EQ(by_name(plans), want);
  }
}

// Any tiling of any tensors, each tile held by any ranks, some tiles large enough to be cut.
TEST(Settle, CoversEveryElementOnceForAnyLayout) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<LocalPlan> plans(random.Between(1, 9));
    const std::uint64_t tensor_count = random.Between(1, 6);
    for (std::uint64_t t = 0; t < tensor_count; ++t) {
      const Dims shape = random.Shape(random.Below(4), 1, random.OneIn(2) ? 300 : 12);
      for (const Box& box : test::RandomTiling(WholeBox(shape), random.Between(1, 6), &random)) {
        const std::uint64_t sure = random.Below(plans.size());
        for (std::size_t rank = 0; rank < plans.size(); ++rank) {
          if (rank == sure || random.OneIn(2)) {
            plans[rank].tensors.push_back({"t" + std::to_string(t), DType::kFloat64, shape, box});
          }
        }
      }
    }
    ExpectEveryElementOnce(plans, MustSettle(plans));
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

// ---- objects and structure ----

TEST(Settle, StoresAnObjectOnceAndReportsReplicasThatDiffer) {
  const std::vector<LocalPlan> plans{{{}, {Object("lr", 1), Object("rng/0", 5)}, {}},
                                     {{}, {Object("rng/1", 6), Object("lr", 2)}, {}},
                                     {{}, {Object("same", 3), Object("lr", 1)}, {}},
                                     {{}, {Object("same", 3)}, {}}};
  const SettledPlan settled = MustSettle(plans);
  EXPECT_EQ(settled.ranks[0].objects, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(settled.ranks[1].objects, std::vector<std::uint32_t>{0});
  EXPECT_EQ(settled.ranks[2].objects, std::vector<std::uint32_t>{0});
  EXPECT_TRUE(settled.ranks[3].objects.empty());
  EXPECT_EQ(settled.differing_objects, std::vector<std::string>{"lr"});
}

TEST(Settle, KeepsEachContentOfAnObjectOnce) {
  const std::vector<LocalPlan> plans{{{}, {Object("lr", 1), Object("rng", 5)}, {}},
                                     {{}, {Object("rng", 6), Object("lr", 1)}, {}},
                                     {{}, {Object("rng", 7)}, {}},
                                     {{}, {Object("rng", 6)}, {}}};
  const auto settled = Settle(plans, Differing::kKeep);
  ASSERT_TRUE(IsOk(settled));
  EXPECT_EQ(settled->differing_objects, std::vector<std::string>{"rng"});
  EXPECT_EQ(settled->ranks[0].objects, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_TRUE(settled->ranks[0].object_variants.empty());
  EXPECT_EQ(settled->ranks[1].objects, std::vector<std::uint32_t>{0});
  EXPECT_EQ(settled->ranks[1].object_variants,
            (std::vector<VariantAssignment>{{0, {{1, 1, 1}, {3, 3, 1}}}}));
  EXPECT_EQ(settled->ranks[2].object_variants, (std::vector<VariantAssignment>{{0, {{2, 2, 1}}}}));
  EXPECT_TRUE(settled->ranks[3].objects.empty());
}

TEST(Settle, GivesTheMergedStructureToRankZero) {
  const Value leaf = test::Make(ValueKind::kObjectLeaf);
  const Value a = test::Dict({Value::Str("a"), leaf});
  const Value b = test::Dict({Value::Str("b"), leaf});
  const SettledPlan settled =
      MustSettle({{{}, {}, EncodeValue(a)}, {{}, {}, EncodeValue(b)}, {{}, {}, ""}});
  EXPECT_EQ(settled.ranks[0].structure,
            EncodeValue(test::Dict({Value::Str("a"), leaf, Value::Str("b"), leaf})));
  EXPECT_EQ(settled.ranks[1].structure, "");
}

// ---- errors ----

TEST(Settle, NamesTensorAndRanksThatDisagree) {
  PlannedTensor half = Whole("w", {4, 4}, DType::kFloat16);
  EXPECT_TRUE(FailsWith(Settle({{{Whole("w", {4, 4})}, {}, {}}, {{half}, {}, {}}}), kInvalid,
                        {"tensor \"w\"", "rank 1 has float16[4, 4]", "rank 0 has float32[4, 4]"}));
  EXPECT_TRUE(FailsWith(
      Settle({{{Whole("w", {4, 4})}, {}, {}}, {{}, {}, {}}, {{Whole("w", {16})}, {}, {}}}),
      kInvalid, {"tensor \"w\"", "rank 2", "[16]", "rank 0", "[4, 4]"}));
}

TEST(Settle, NamesATensorWhoseShardsOverlap) {
  const PlannedTensor part{"w", DType::kFloat32, {4, 4}, {{1, 0}, {3, 4}}};
  EXPECT_TRUE(FailsWith(Settle({{{Whole("w", {4, 4})}, {}, {}}, {{part}, {}, {}}}), kInvalid,
                        {"tensor \"w\"", "overlap"}));
}

TEST(Settle, NamesTheBoxThatNoRankHolds) {
  EXPECT_TRUE(FailsWith(
      Settle({{{Slice("w", {9, 4}, 0, 3)}, {}, {}}, {{Slice("w", {9, 4}, 2, 3)}, {}, {}}}),
      kInvalid, {"tensor \"w\" of shape [9, 4]", "no rank holds [3:6, 0:4]"}));
  EXPECT_TRUE(FailsWith(Settle({{{{"w", DType::kInt8, {4}, {{4}, {0}}}}, {}, {}}}), kInvalid,
                        {"no rank holds [0:4]"}));
}

TEST(Settle, RefusesANameThatIsATensorHereAndAnObjectThere) {
  EXPECT_TRUE(FailsWith(Settle({{{Whole("x", {4})}, {}, {}}, {{}, {Object("x")}, {}}}), kInvalid,
                        {"\"x\" is a tensor on rank 0 and a plain value on rank 1"}));
}

TEST(Settle, NamesThePathWhereStructuresDisagree) {
  const Bytes a = EncodeValue(test::Dict({Value::Str("state"), test::Dict({})}));
  const Bytes b = EncodeValue(test::Dict({Value::Str("state"), test::List({})}));
  EXPECT_TRUE(FailsWith(Settle({{{}, {}, a}, {{}, {}, b}}), kInvalid, {"state"}));
}

/// A value "NAME" with two storages, which are the first tensors of the plan.
LocalPlan WithArchive(const std::string& name) {
  LocalPlan plan{{Whole(name + ".a", {4096, 64}), Whole(name + ".b", {3})}, {Object(name)}, {}};
  plan.tensors[0].part_of = 0;
  plan.tensors[1].part_of = 0;
  return plan;
}

TEST(Settle, KeepsAnArchiveAndItsTensorsOnOneRank) {
  std::vector<LocalPlan> plans(3, WithArchive("w"));
  for (LocalPlan& plan : plans) {  // Rank 0 has more of its own than the others.
    plan.tensors.push_back(Whole("x", {4}));
  }
  plans[0].tensors.push_back(Whole("own", {64, 1024}));
  const SettledPlan settled = MustSettle(plans);
  ExpectEveryElementOnce(plans, settled);
  ASSERT_EQ(settled.ranks[1].objects, std::vector<std::uint32_t>{0});
  EXPECT_TRUE(settled.ranks[0].objects.empty());
  for (const std::uint32_t item : {0U, 1U}) {
    EXPECT_EQ(std::count(settled.ranks[1].chunks.begin(), settled.ranks[1].chunks.end(),
                         ChunkAssignment{item}),
              1);
  }
}

TEST(Settle, TakesAnArchiveFromTheLowestRankWhereRanksDiffer) {
  std::vector<LocalPlan> plans(2, WithArchive("w"));
  plans[0].tensors.push_back(Whole("own", {64, 1024}));
  plans[0].tensors[1].fingerprint = 1;
  plans[1].tensors[1].fingerprint = 2;
  const SettledPlan settled = MustSettle(plans);
  EXPECT_EQ(settled.ranks[0].objects, std::vector<std::uint32_t>{0});
  EXPECT_EQ(settled.ranks[0].chunks.size(), 3U);
  EXPECT_TRUE(settled.ranks[1].chunks.empty());
}

TEST(Settle, WritesATiedArchiveWhereTheOtherIs) {
  LocalPlan plan = WithArchive("v");
  const LocalPlan tied = WithArchive("w");
  plan.objects.push_back(tied.objects[0]);
  for (const std::uint32_t item : {0U, 1U}) {
    plan.tensors.push_back(tied.tensors[item]);
    plan.tensors.back().part_of = 1;
    plan.tensors.back().tied_to = item;
  }
  std::vector<LocalPlan> plans(2, plan);
  plans[0].tensors.push_back(Whole("own", {64, 1024}));
  const SettledPlan settled = MustSettle(plans);
  EXPECT_EQ(settled.ranks[1].objects, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(settled.ranks[1].aliases, (std::vector<std::uint32_t>{2, 3}));
}

}  // namespace
}  // namespace varve::settle_test
