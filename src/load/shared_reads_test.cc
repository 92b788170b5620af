#include "load/shared_reads.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace varve::shared_reads_test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// Returns a tensor of 64 MiB, stored by rows as so many chunks.
Metadata StoredByRows(std::uint64_t chunks) {
  Metadata metadata;
  metadata.files.resize(1);
  TensorMetadata tensor{"w", DType::kFloat32, {4096, 4096}, {}};
  const std::uint64_t rows = 4096 / chunks;
  for (std::uint64_t i = 0; i < chunks; ++i) {
    tensor.chunks.push_back({{{i * rows, 0}, {rows, 4096}}, {}, {}});
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
  return NeedOf(metadata, std::vector{target}, {});
}

ReadNeed Need(std::string node, std::uint8_t parts, std::uint64_t bytes) {
  ReadNeed need{std::move(node), {}, bytes};
  need.parts.bytes[0] = parts;
  return need;
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> Shares(const std::vector<ReadNeed>& needs,
                                                            std::uint64_t wanted) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> shares;
  for (const SharedBy by : ShareReads(needs, wanted)) {
    shares.emplace_back(by.place, by.ranks);
  }
  return shares;
}

using Pairs = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

TEST(NeedOf, RanksThatNeedTheSamePartsSaySo) {
  const Metadata metadata = StoredByRows(4);
  const ReadNeed whole = NeedOfBox(metadata, {{0, 0}, {4096, 4096}});
  EXPECT_EQ(whole.bytes, 64 * kMiB);
  EXPECT_FALSE(whole.node.empty());
  EXPECT_EQ(whole.parts, NeedOfBox(metadata, {{0, 0}, {4096, 4096}}).parts);
  EXPECT_NE(whole.parts, NeedOfBox(metadata, {{0, 0}, {4095, 4096}}).parts);
}

TEST(NeedOf, AFewColumnsOfRowsAreReadWithTheRestOfTheRows) {
  const ReadNeed columns = NeedOfBox(StoredByRows(4), {{0, 1024}, {4096, 1024}});
  // From the first row's columns to the last row's, in each of four chunks.
  EXPECT_EQ(columns.bytes, 4 * (1023 * 16384 + 4096));
  const ReadNeed rows = NeedOfBox(StoredByRows(4), {{1024, 0}, {1024, 4096}});
  EXPECT_EQ(rows.bytes, 16 * kMiB);
}

TEST(NeedOf, LittleIsNotWorthSharingNorWhatIsNotThere) {
  EXPECT_TRUE(NeedOfBox(StoredByRows(4), {{0, 0}, {1000, 4096}}).node.empty());
  Metadata lacking = StoredByRows(4);
  lacking.tensors[0].chunks.pop_back();
  EXPECT_TRUE(NeedOfBox(lacking, {{0, 0}, {4096, 4096}}).node.empty());
}

TEST(ShareReads, RanksThatShardATensorReadForThemselves) {
  const Pairs alone{{0, 1}, {0, 1}, {0, 1}};
  EXPECT_EQ(Shares({Need("a", 1, 30), Need("a", 2, 30), Need("a", 3, 40)}, 100), alone);
  EXPECT_EQ(Shares({Need("a", 1, 35), Need("a", 2, 35), Need("a", 3, 40)}, 100), alone);
}

TEST(ShareReads, ReplicasShareWithinTheirNode) {
  EXPECT_EQ(Shares({Need("a", 1, 100), Need("b", 1, 100), Need("a", 1, 100), Need("b", 1, 100),
                    Need("a", 1, 100)},
                   100),
            (Pairs{{0, 3}, {0, 2}, {1, 3}, {1, 2}, {2, 3}}));
}

TEST(ShareReads, AllOfANodeShareWhereTogetherTheyReadMoreThanThereIs) {
  EXPECT_EQ(Shares({Need("a", 1, 99), Need("a", 2, 99), Need("b", 3, 50), Need("b", 4, 50)}, 100),
            (Pairs{{0, 2}, {1, 2}, {0, 1}, {0, 1}}));
}

TEST(ShareReads, PairsOfReplicasOfASmallPartShare) {
  EXPECT_EQ(Shares({Need("a", 1, 10), Need("a", 2, 10), Need("a", 1, 10), Need("a", 2, 10)}, 100),
            (Pairs{{0, 2}, {0, 2}, {1, 2}, {1, 2}}));
}

TEST(ShareReads, RanksWithoutANodeShareNothing) {
  EXPECT_EQ(Shares({Need("", 1, 100), Need("", 1, 100)}, 100), (Pairs{{0, 1}, {0, 1}}));
}

}  // namespace
}  // namespace varve::shared_reads_test
