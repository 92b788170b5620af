#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "interop/dcp/metadata.h"
#include "support/status_matchers.h"

namespace varve::merge_test {
namespace {

using test::FailsWith;
using test::IsOk;

std::string FileOf(std::uint32_t rank) { return "__" + std::to_string(rank) + "_0.distcp"; }

/// One rank's index: all it stores lies in its own file.
class RankIndex {
 public:
  explicit RankIndex(std::uint32_t rank) : rank_(rank) {
    decoded_.metadata.format = Format::kDcp;
    decoded_.metadata.files.push_back({.name = FileOf(rank), .rank = rank});
    decoded_.structure = Value{.kind = ValueKind::kDict};
  }

  RankIndex& Tensor(std::string fqn, Dims shape, std::vector<Box> boxes,
                    DType dtype = DType::kFloat32) {
    TensorMetadata tensor{std::move(fqn), dtype, std::move(shape), {}};
    for (Box& box : boxes) {
      tensor.chunks.Listed().push_back({.box = std::move(box), .extent = NextExtent()});
    }
    decoded_.metadata.tensors.push_back(std::move(tensor));
    return *this;
  }
  RankIndex& Object(std::string fqn) {
    decoded_.metadata.objects.push_back({std::move(fqn), NextExtent()});
    return *this;
  }
  RankIndex& Structure(std::optional<Value> structure) {
    decoded_.structure = std::move(structure);
    return *this;
  }
  operator Decoded() const { return decoded_; }  // NOLINT(google-explicit-constructor)

 private:
  Extent NextExtent() {
    at_ += 10;
    return {0, at_ - 10 + rank_, at_, Encoding::kTorchItem};
  }

  std::uint32_t rank_;
  std::uint64_t at_ = 0;
  Decoded decoded_;
};

Value Dict(std::vector<std::pair<std::string, Value>> pairs) {
  Value dict{.kind = ValueKind::kDict};
  for (auto& [key, value] : pairs) {
    dict.items.push_back(Value::Str(key));
    dict.items.push_back(std::move(value));
  }
  return dict;
}
Value List(std::vector<Value> items) {
  return {.kind = ValueKind::kList, .items = std::move(items)};
}
const Value kTensor{.kind = ValueKind::kTensorLeaf, .text = "torch"};
const Value kObject{.kind = ValueKind::kObjectLeaf};

TEST(DcpMerge, ChunksOfAllRanksMakeATensor) {
  const auto merged =
      MergeRankLocalDcp({RankIndex(0).Tensor("b", {5}, {{{3}, {2}}}).Tensor("w", {4}, {{{0}, {2}}}),
                         RankIndex(1).Tensor("w", {4}, {{{2}, {2}}}).Tensor("a", {}, {{}})});
  ASSERT_TRUE(IsOk(merged));
  const Metadata& metadata = merged->metadata;
  EXPECT_EQ(metadata.format, Format::kDcp);
  EXPECT_EQ(metadata.world_size, 2U);
  ASSERT_EQ(metadata.files.size(), 2U);
  EXPECT_EQ(metadata.files[1].name, FileOf(1));
  ASSERT_EQ(metadata.tensors.size(), 3U);
  EXPECT_EQ(metadata.tensors[0].fqn, "a");
  EXPECT_EQ(metadata.tensors[1].fqn, "b") << "a hole is no error here";
  ASSERT_EQ(metadata.tensors[2].chunks.size(), 2U);
  EXPECT_EQ(metadata.tensors[2].chunks[0].extent, (Extent{0, 10, 20, Encoding::kTorchItem}));
  EXPECT_EQ(metadata.tensors[2].chunks[1].extent, (Extent{1, 1, 10, Encoding::kTorchItem}));
}

TEST(DcpMerge, ReplicasAndValuesAreTakenFromTheLowestRank) {
  const auto merged = MergeRankLocalDcp(
      {RankIndex(0).Tensor("w", {4}, {{{0}, {2}}}),
       RankIndex(1).Tensor("w", {4}, {{{2}, {2}}, {{4}, {0}}}).Object("step"),
       RankIndex(2).Tensor("w", {4}, {{{0}, {2}}, {{2}, {2}}, {{4}, {0}}}).Object("step")});
  ASSERT_TRUE(IsOk(merged));
  const auto& chunks = merged->metadata.tensors[0].chunks;
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_EQ(chunks[0].extent.file, 0U);
  EXPECT_EQ(chunks[1].extent.file, 1U);
  EXPECT_EQ(chunks[2].extent.file, 1U);
  ASSERT_EQ(merged->metadata.objects.size(), 1U);
  EXPECT_EQ(merged->metadata.objects[0].extent.file, 1U);
}

TEST(DcpMerge, FilesAreInTheOrderOfTheirNames) {
  std::vector<Decoded> by_rank;
  for (std::uint32_t rank = 0; rank < 12; ++rank) {
    by_rank.push_back(RankIndex(rank).Tensor("w", {12}, {{{rank}, {1}}}));
  }
  const auto merged = MergeRankLocalDcp(by_rank);
  ASSERT_TRUE(IsOk(merged));
  const Metadata& metadata = merged->metadata;
  EXPECT_EQ(metadata.files[1].name, FileOf(10));
  EXPECT_EQ(metadata.files[3].name, FileOf(1)) << "bytewise";
  for (std::uint32_t rank = 0; rank < 12; ++rank) {
    const Chunk& chunk = metadata.tensors[0].chunks[rank];
    EXPECT_EQ(metadata.files[chunk.extent.file].rank, rank);
  }
}

TEST(DcpMerge, RanksThatDisagreeAreNamed) {
  EXPECT_TRUE(FailsWith(MergeRankLocalDcp({RankIndex(0), RankIndex(1).Tensor("w", {4}, {}),
                                           RankIndex(2).Tensor("w", {5}, {})}),
                        StatusCode::kDataLoss,
                        {"tensor \"w\"", "rank 1 has float32[4]", "rank 2 has float32[5]"}));
  EXPECT_TRUE(FailsWith(MergeRankLocalDcp({RankIndex(0).Tensor("w", {4}, {}),
                                           RankIndex(1).Tensor("w", {4}, {}, DType::kInt8)}),
                        StatusCode::kDataLoss, {"rank 1 has int8[4]"}));
  EXPECT_TRUE(
      FailsWith(MergeRankLocalDcp({RankIndex(0).Object("w"), RankIndex(1).Tensor("w", {4}, {})}),
                StatusCode::kDataLoss, {"\"w\" is a tensor on rank 1 and a value"}));
  EXPECT_TRUE(FailsWith(MergeRankLocalDcp({RankIndex(0).Tensor("w", {4}, {{{0}, {3}}}),
                                           RankIndex(1).Tensor("w", {4}, {{{2}, {2}}})}),
                        StatusCode::kDataLoss, {"tensor \"w\"", "overlap", "[0:3]", "[2:4]"}));
  EXPECT_TRUE(FailsWith(MergeRankLocalDcp({}), StatusCode::kDataLoss));
}

TEST(DcpMerge, StructuresAreJoined) {
  const auto join = [](std::vector<std::optional<Value>> structures) {
    std::vector<Decoded> by_rank;
    for (auto& structure : structures) {
      by_rank.push_back(
          RankIndex(static_cast<std::uint32_t>(by_rank.size())).Structure(std::move(structure)));
    }
    const auto merged = MergeRankLocalDcp(by_rank);
    return !merged.ok()        ? merged.status().ToString()
           : merged->structure ? ToString(*merged->structure)
                               : "none";
  };
  EXPECT_EQ(join({Dict({{"a", kTensor}}), Dict({{"b", kObject}})}),
            "{'a': <tensor>, 'b': <object>}");
  EXPECT_EQ(join({Dict({{"a", kTensor}}), std::nullopt}), "none");
  EXPECT_TRUE(join({Dict({{"a", kTensor}}), Dict({{"a", kObject}})}).starts_with("DataLoss"));
  // Positions that one rank has nothing for look like empty dicts.
  const Value hole = Dict({});
  EXPECT_EQ(join({Dict({{"a", List({hole, kTensor})}}), Dict({{"a", List({kTensor, hole, hole})}}),
                  Dict({{"a", List({hole, hole, Dict({{"b", kObject}})})}})}),
            "{'a': [<tensor>, <tensor>, {'b': <object>}]}");
}

}  // namespace
}  // namespace varve::merge_test
