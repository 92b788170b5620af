#include "share/sharing.h"

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace varve::sharing_test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// Returns a tensor of 64 MiB, stored by rows as so many chunks.
Metadata StoredByRows(std::uint64_t chunks) {
  Metadata metadata;
  metadata.files.resize(1);
  metadata.files[0].size = 64 * kMiB;
  TensorMetadata tensor{"w", DType::kFloat32, {4096, 4096}, {}};
  const std::uint64_t rows = 4096 / chunks;
  for (std::uint64_t i = 0; i < chunks; ++i) {
    tensor.chunks.Listed().push_back(
        {{{i * rows, 0}, {rows, 4096}}, {0, i * rows << 14, (i + 1) * rows << 14}, {}, {}});
  }
  metadata.tensors.push_back(std::move(tensor));
  return metadata;
}

ReadNeed NeedOfBox(const Metadata& metadata, Box box) {
  TargetTensor target;
  target.fqn = "w";
  target.dtype = DType::kFloat32;
  target.shape = {4096, 4096};
  target.box = std::move(box);
  return NeedOf(metadata, std::vector{target});
}

/// Returns the need of a rank, in percent of the one tensor that is stored.
ReadNeed Need(std::string node, std::uint8_t parts, std::uint64_t percent) {
  ReadNeed need;
  need.node = std::move(node);
  need.parts.bytes[0] = parts;
  need.bytes = percent * 64 * kMiB / 100;
  need.stretches = "\377";  // Eight of 8 MiB: all there is.
  return need;
}

using Pairs = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

Pairs Shares(const std::vector<ReadNeed>& needs) {
  Pairs shares;
  for (const ReadGroup& sharing : ShareReads(StoredByRows(4), needs)) {
    shares.emplace_back(sharing.by_cache.place, sharing.by_cache.ranks);
  }
  return shares;
}

TEST(NeedOf, RanksThatNeedTheSamePartsSaySo) {
  const Metadata metadata = StoredByRows(4);
  const ReadNeed whole = NeedOfBox(metadata, {{0, 0}, {4096, 4096}});
  EXPECT_EQ(whole.bytes, 64 * kMiB);
  EXPECT_FALSE(whole.node.empty());
  EXPECT_EQ(whole.parts, NeedOfBox(metadata, {{0, 0}, {4096, 4096}}).parts);
  EXPECT_NE(whole.parts, NeedOfBox(metadata, {{0, 0}, {4095, 4096}}).parts);
  Metadata elsewhere = StoredByRows(4);
  elsewhere.tensors[0].chunks.Listed()[3].extent = {0, 64 * kMiB, 80 * kMiB};
  EXPECT_NE(whole.parts, NeedOfBox(elsewhere, {{0, 0}, {4096, 4096}}).parts);
}

TEST(NeedOf, AFewColumnsOfRowsAreReadWithTheRestOfTheRows) {
  EXPECT_EQ(NeedOfBox(StoredByRows(4), {{0, 1024}, {4096, 1024}}).bytes, 64 * kMiB);
  EXPECT_EQ(NeedOfBox(StoredByRows(4), {{1024, 0}, {1024, 4096}}).bytes, 16 * kMiB);
  // Apart from each other by more than a checksum block: 4096 columns of 8 rows of 32 MiB.
  Metadata wide = StoredByRows(1);
  wide.tensors[0].shape = {8, std::uint64_t{8} << 20};
  wide.tensors[0].chunks.Listed()[0] = {
      {{0, 0}, wide.tensors[0].shape}, {0, 0, 256 * kMiB}, {}, {}};
  TargetTensor target;
  target.fqn = "w";
  target.dtype = DType::kFloat32;
  target.shape = wide.tensors[0].shape;
  target.box = {{0, 0}, {8, 1 << 20}};
  EXPECT_EQ(NeedOf(wide, std::vector{target}).bytes, 32 * kMiB);
}

TEST(NeedOf, BlocksBeginWithTheDataOfAFile) {
  Metadata metadata = StoredByRows(4);
  metadata.files[0].data_begin = 4096;
  for (Chunk& chunk : metadata.tensors[0].chunks.Listed()) {
    chunk.extent.begin += 4096;
    chunk.extent.end += 4096;
  }
  EXPECT_EQ(NeedOfBox(metadata, {{1024, 0}, {1024, 4096}}).bytes, 16 * kMiB);
}

TEST(NeedOf, SmallTensorsAreReadWithTheirNeighboursInTheBlock) {
  Metadata metadata;
  metadata.files.resize(1);
  std::vector<TargetTensor> targets;
  for (std::uint64_t i = 0; i < 512; ++i) {  // Each of 64 KiB; wanted is half of each.
    const std::string fqn = "w" + std::to_string(1000 + i);
    metadata.tensors.push_back({fqn, DType::kUInt8, {65536}, {}});
    metadata.tensors.back().chunks.Listed().push_back(
        {{{0}, {65536}}, {0, i << 16, (i + 1) << 16}, {}, {}});
    TargetTensor& target = targets.emplace_back();
    target.fqn = fqn;
    target.dtype = DType::kUInt8;
    target.shape = {65536};
    target.box = {{32768}, {32768}};
  }
  EXPECT_EQ(NeedOf(metadata, targets).bytes, 32 * kMiB);
}

TEST(NeedOf, LittleIsNotWorthSharingNorWhatIsNotThere) {
  EXPECT_TRUE(NeedOfBox(StoredByRows(8), {{0, 0}, {512, 4096}}).node.empty());
  Metadata lacking = StoredByRows(4);
  lacking.tensors[0].chunks.Listed().pop_back();
  EXPECT_TRUE(NeedOfBox(lacking, {{0, 0}, {4096, 4096}}).node.empty());
}

TEST(NeedOf, ATensorOfWhichEachRankReadsItsOwnValueIsNotShared) {
  Metadata metadata = StoredByRows(4);
  metadata.tensor_variants.push_back({"w", {{0, 0}, {4096, 4096}}, {}, {}});
  EXPECT_TRUE(NeedOfBox(metadata, {{0, 0}, {4096, 4096}}).node.empty());
}

TEST(ShareReads, RanksThatShardATensorReadForThemselves) {
  const Pairs alone{{0, 1}, {0, 1}, {0, 1}};
  EXPECT_EQ(Shares({Need("a", 1, 30), Need("a", 2, 30), Need("a", 3, 40)}), alone);
  EXPECT_EQ(Shares({Need("a", 1, 35), Need("a", 2, 35), Need("a", 3, 39)}), alone);
}

TEST(ShareReads, ReplicasShareWithinTheirNode) {
  EXPECT_EQ(Shares({Need("a", 1, 100), Need("b", 1, 100), Need("a", 1, 100), Need("b", 1, 100),
                    Need("a", 1, 100)}),
            (Pairs{{0, 3}, {0, 2}, {1, 3}, {1, 2}, {2, 3}}));
}

TEST(ShareReads, AllOfANodeShareWhereTogetherTheyReadMoreThanThereIs) {
  EXPECT_EQ(Shares({Need("a", 1, 99), Need("a", 2, 99), Need("b", 3, 50), Need("b", 4, 50)}),
            (Pairs{{0, 2}, {1, 2}, {0, 1}, {0, 1}}));
}

TEST(ShareReads, ThereIsNoMoreThanTheTensorsThatTheNodeNeeds) {
  Metadata metadata = StoredByRows(4);
  metadata.files.resize(2);
  metadata.files[1].size = 4096 * kMiB;  // No rank needs it.
  const auto shared = ShareReads(metadata, std::vector{Need("a", 1, 99), Need("a", 2, 99)});
  EXPECT_EQ(shared[1].by_cache.ranks, 2U);
}

TEST(ShareReads, PairsOfReplicasOfASmallPartShare) {
  EXPECT_EQ(Shares({Need("a", 1, 25), Need("a", 2, 25), Need("a", 1, 25), Need("a", 2, 25)}),
            (Pairs{{0, 2}, {0, 2}, {1, 2}, {1, 2}}));
}

/// Returns it of a rank that can be asked by others.
ReadNeed Reachable(std::string node, std::uint8_t parts, std::uint64_t percent, std::string address,
                   bool remote = false) {
  ReadNeed need = Need(std::move(node), parts, percent);
  need.address = std::move(address);
  need.remote = remote;
  return need;
}

using Nodes = std::vector<std::vector<std::string>>;

TEST(ShareReads, ReplicasOfSeveralNodesReadForEachOther) {
  const auto groups = ShareReads(
      StoredByRows(4), std::vector{Reachable("a", 1, 100, "0"), Reachable("b", 1, 100, "1"),
                                   Reachable("a", 1, 100, "2"), Reachable("b", 1, 100, "3")});
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    // Of the other node a rank asks the one at its own place.
    EXPECT_EQ(groups[rank].nodes,
              (std::array{Nodes{{"0", "2"}, {"1", ""}}, Nodes{{"0", ""}, {"1", "3"}},
                          Nodes{{"0", "2"}, {"", "3"}}, Nodes{{"", "2"}, {"1", "3"}}}[rank]));
    EXPECT_EQ(groups[rank].node, rank % 2);
    EXPECT_EQ(groups[rank].place, rank / 2);
  }
}

TEST(ShareReads, NodesThatNeedDifferentBytesDoNot) {
  std::vector<ReadNeed> needs{Reachable("a", 1, 50, "0"), Reachable("b", 2, 50, "1"),
                              Reachable("a", 1, 50, "2"), Reachable("b", 2, 50, "3")};
  for (ReadNeed& need : needs) {
    need.stretches = need.node == "a" ? "\17" : "\360";
  }
  for (const ReadGroup& group : ShareReads(StoredByRows(4), needs)) {
    EXPECT_TRUE(group.nodes.empty());
    EXPECT_EQ(group.by_cache.ranks, 2U);
  }
}

TEST(ShareReads, RanksOfANodeReadForEachOtherWhereTheFilesAreOnAServer) {
  const auto groups = ShareReads(StoredByRows(4), std::vector{Reachable("a", 1, 99, "0", true),
                                                              Reachable("a", 2, 99, "1", true)});
  EXPECT_EQ(groups[1].nodes, (Nodes{{"0", "1"}}));
  EXPECT_EQ(groups[1].place, 1U);
  EXPECT_EQ(groups[1].by_cache.ranks, 1U);
}

TEST(ShareReads, ARankThatCannotBeReachedIsLeftOut) {
  const auto groups = ShareReads(
      StoredByRows(4), std::vector{Reachable("a", 1, 100, "0"), Reachable("b", 1, 100, ""),
                                   Reachable("c", 1, 100, "2")});
  EXPECT_EQ(groups[0].nodes, (Nodes{{"0"}, {"2"}}));
  EXPECT_TRUE(groups[1].nodes.empty());
}

TEST(ShareReads, RanksWhoseFilesDifferDoNotReadForEachOther) {
  std::vector<ReadNeed> needs{Reachable("a", 1, 100, "0"), Reachable("b", 1, 100, "1"),
                              Reachable("c", 1, 100, "2")};
  needs[1].files.bytes[0] = 1;
  const auto groups = ShareReads(StoredByRows(4), needs);
  EXPECT_EQ(groups[0].nodes, (Nodes{{"0"}, {"2"}}));
  EXPECT_TRUE(groups[1].nodes.empty());
}

TEST(DigestOfFiles, TellsChecksumsApart) {
  Metadata metadata = StoredByRows(4);
  metadata.files[0].block_crc32c = {1, 2};
  const auto digest = DigestOfFiles(metadata, "/a", false);
  ASSERT_TRUE(digest.has_value());
  EXPECT_EQ(DigestOfFiles(metadata, "/elsewhere", false), digest);
  metadata.files[0].block_crc32c[1] = 3;
  EXPECT_NE(DigestOfFiles(metadata, "/a", false), digest);
}

TEST(DigestOfFiles, GoesByTheNameOnAServerWhereThereAreNone) {
  const Metadata metadata = StoredByRows(4);
  EXPECT_FALSE(DigestOfFiles(metadata, "/a", false).has_value());
  const auto digest = DigestOfFiles(metadata, "s3://bucket/a", true);
  ASSERT_TRUE(digest.has_value());
  EXPECT_NE(DigestOfFiles(metadata, "s3://bucket/b", true), digest);
}

TEST(ShareReads, AtMost32NodesReadForEachOther) {
  std::vector<ReadNeed> needs;
  for (int rank = 0; rank < 40; ++rank) {
    const std::string number = std::to_string(100 + rank);
    needs.push_back(Reachable("node" + number, 1, 100, number));
  }
  const auto groups = ShareReads(StoredByRows(4), needs);
  EXPECT_EQ(groups[31].nodes.size(), 32U);
  EXPECT_EQ(groups[32].nodes.size(), 8U);
  EXPECT_EQ(groups[39].nodes[groups[39].node][groups[39].place], "139");
}

TEST(ShareReads, RanksWithoutANodeShareNothing) {
  EXPECT_EQ(Shares({Need("", 1, 100), Need("", 1, 100)}), (Pairs{{0, 1}, {0, 1}}));
}

}  // namespace
}  // namespace varve::sharing_test
