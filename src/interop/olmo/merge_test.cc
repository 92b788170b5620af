#include <gtest/gtest.h>

#include "interop/olmo/pieces.h"
#include "support/status_matchers.h"
#include "tensor/box.h"

namespace varve::merge_test {
namespace {

using test::FailsWith;
using test::IsOk;

constexpr auto kDataLoss = StatusCode::kDataLoss;

/// All files hold "0123456789".
ReplicaCheck SameFiles() {
  return {{"rank0.pt", "rank1.pt", "rank2.pt"},
          {},
          [](std::uint32_t, std::uint64_t begin, std::uint64_t end) {
            return Result<std::string>(std::string("0123456789").substr(begin, end - begin));
          }};
}

/// Elements [begin, end) of four, at byte `at` of a file.
StateNode Shard(std::uint32_t file, std::uint64_t begin, std::uint64_t end, std::uint64_t at) {
  Chunk chunk{.box = {{begin}, {end - begin}},
              .extent = {file, at, at + end - begin, Encoding::kPlain},
              .content = {},
              .strides = {}};
  return StateNode::OfTensor({DType::kUInt8, {4}, {chunk}, "digest"});
}

StateNode NoShard() { return StateNode::OfTensor({DType::kUInt8, {4}, {}, "digest"}); }

StateNode Whole(std::uint32_t file, std::uint64_t at) {
  StateNode node = Shard(file, 0, 4, at);
  node.tensor.sharding.clear();
  return node;
}

StateNode Int(std::int64_t value) { return StateNode::OfValue(Value::Int(value)); }

StateNode Dict(std::vector<std::pair<const char*, StateNode>> items) {
  StateNode dict;
  for (auto& [key, item] : items) {
    dict.Add(key, std::move(item));
  }
  return dict;
}

Result<StateNode> Merge(std::vector<StateNode> ranks) {
  std::vector<StateNode*> states;
  states.reserve(ranks.size());
  for (StateNode& rank : ranks) {
    states.push_back(&rank);
  }
  return MergeRanks("", std::move(states), SameFiles());
}

std::vector<StateNode> TwoRanks(StateNode first, StateNode second) {
  std::vector<StateNode> ranks;
  ranks.push_back(Dict({{"a", std::move(first)}}));
  ranks.push_back(Dict({{"a", std::move(second)}}));
  return ranks;
}

TEST(OlmoMerge, PutsShardsTogetherInTheOrderOfTheTensor) {
  auto merged = Merge(TwoRanks(Shard(0, 2, 4, 0), Shard(1, 0, 2, 0)));
  ASSERT_TRUE(IsOk(merged));
  const StoredTensor& tensor = merged->Find("a")->tensor;
  ASSERT_EQ(tensor.chunks.size(), 2);
  EXPECT_EQ(tensor.chunks[0].extent.file, 1);
  EXPECT_EQ(tensor.chunks[1].extent.file, 0);
}

TEST(OlmoMerge, TakesARankThatHoldsNoShard) {
  auto merged = Merge(TwoRanks(Shard(0, 0, 4, 0), NoShard()));
  ASSERT_TRUE(IsOk(merged));
  EXPECT_EQ(merged->Find("a")->tensor.chunks.size(), 1);
}

TEST(OlmoMerge, CountsEqualShardsOnceAndRefusesUnequalOnes) {
  auto merged = Merge(TwoRanks(Shard(0, 0, 4, 0), Shard(1, 0, 4, 0)));
  ASSERT_TRUE(IsOk(merged));
  EXPECT_EQ(merged->Find("a")->tensor.chunks.size(), 1);
  EXPECT_TRUE(FailsWith(Merge(TwoRanks(Shard(0, 0, 4, 0), Shard(1, 0, 4, 1))), kDataLoss,
                        {"\"a\"", "rank0.pt and rank1.pt", "different values"}));
}

TEST(OlmoMerge, RefusesShardsThatOverlapInPart) {
  EXPECT_TRUE(FailsWith(Merge(TwoRanks(Shard(0, 0, 3, 0), Shard(1, 2, 4, 2))), kDataLoss,
                        {"\"a\"", "rank0.pt", "rank1.pt", "overlap"}));
}

TEST(OlmoMerge, RefusesTensorsThatAreShardedInDifferentWays) {
  StateNode other = Shard(1, 2, 4, 0);
  other.tensor.sharding = "another";
  EXPECT_TRUE(FailsWith(Merge(TwoRanks(Shard(0, 0, 2, 0), std::move(other))), kDataLoss,
                        {"\"a\"", "shards", "rank1.pt"}));
}

TEST(OlmoMerge, ComparesWholeTensors) {
  EXPECT_TRUE(IsOk(Merge(TwoRanks(Whole(0, 0), Whole(1, 0)))));
  EXPECT_TRUE(FailsWith(Merge(TwoRanks(Whole(0, 0), Whole(1, 3))), kDataLoss, {"rank1.pt"}));
}

TEST(OlmoMerge, ComparesValues) {
  EXPECT_TRUE(IsOk(Merge(TwoRanks(Int(1), Int(1)))));
  EXPECT_TRUE(FailsWith(Merge(TwoRanks(Int(1), Int(2))), kDataLoss,
                        {"\"a\" has different values", "rank0.pt and rank1.pt"}));
  EXPECT_TRUE(FailsWith(Merge(TwoRanks(Int(1), Dict({}))), kDataLoss, {"different kinds"}));
}

TEST(OlmoMerge, TakesKeysInAnyOrderAndGivesThatOfTheFirstRank) {
  std::vector<StateNode> ranks;
  ranks.push_back(Dict({{"a", Int(1)}, {"b", Int(2)}, {"c", Int(3)}}));
  ranks.push_back(Dict({{"c", Int(3)}, {"a", Int(1)}, {"b", Int(2)}}));
  const auto merged = Merge(std::move(ranks));
  ASSERT_TRUE(IsOk(merged));
  EXPECT_EQ(KeyText(merged->keys[0]), "a");
  EXPECT_EQ(KeyText(merged->keys[2]), "c");
}

TEST(OlmoMerge, NamesAKeyThatOneRankLacks) {
  std::vector<StateNode> ranks;
  ranks.push_back(Dict({{"s", Dict({{"a", Int(1)}, {"b", Int(2)}})}}));
  ranks.push_back(Dict({{"s", Dict({{"a", Int(1)}, {"b", Int(2)}})}}));
  ranks.push_back(Dict({{"s", Dict({{"a", Int(1)}, {"d", Int(2)}})}}));
  EXPECT_TRUE(FailsWith(Merge(std::move(ranks)), kDataLoss,
                        {"\"s.b\" is in rank0.pt and not in rank2.pt"}));
}

TEST(OlmoMerge, OfOneRankIsItsState) {
  std::vector<StateNode> ranks;
  ranks.push_back(Dict({{"a", Shard(0, 0, 4, 0)}, {"b", Int(2)}}));
  const auto merged = Merge(std::move(ranks));
  ASSERT_TRUE(IsOk(merged));
  EXPECT_EQ(merged->items.size(), 2);
}

}  // namespace
}  // namespace varve::merge_test
