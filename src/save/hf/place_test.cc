#include "save/hf/place.h"

#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "support/status_matchers.h"
#include "tensor/box.h"

namespace varve::test::hf_place_test {
namespace {

constexpr std::uint64_t kFileBytes = 5'000'000'000;

/// Tensors that are divided over ranks along `dim`.
SettledSave Sharded(std::uint32_t ranks, std::uint32_t tensors, const Dims& of_rank,
                    std::size_t dim) {
  SettledSave save;
  save.shard_size = kFileBytes;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    LocalPlan& plan = save.plans.emplace_back();
    RankAssignment& assignment = save.settled.ranks.emplace_back();
    for (std::uint32_t i = 0; i < tensors; ++i) {
      Dims shape = of_rank;
      shape[dim] *= ranks;
      PlannedTensor tensor{
          "w" + std::to_string(i), DType::kUInt8, shape, {Dims(of_rank.size(), 0), of_rank}};
      tensor.box.offsets[dim] = of_rank[dim] * rank;
      assignment.chunks.push_back({i});
      plan.tensors.push_back(std::move(tensor));
    }
  }
  return save;
}

Result<std::vector<Bytes>> Place(SettledSave save) { return PlaceHf(&save); }

TEST(PlaceHf, EdgesOfRowsAreAboutAPageOfATensorAndRank) {
  const auto placed = Place(Sharded(64, 1000, {3, 5001}, 0));
  ASSERT_TRUE(IsOk(placed));
  EXPECT_EQ(placed->size(), 64U);
}

TEST(PlaceHf, EdgesOfTooManyRowsAreToldFromColumns) {
  EXPECT_TRUE(FailsWith(Place(Sharded(512, 1024, {3, 1001}, 0)), StatusCode::kInvalidArgument,
                        {"edges of shards by rows", "1024 tensors", "512 ranks", "fewer ranks"}));
  EXPECT_TRUE(FailsWith(Place(Sharded(8, 1, {200'000, 1000}, 1)), StatusCode::kInvalidArgument,
                        {"shards by columns", "\"w0\"", "varve convert --to hf"}));
}

TEST(PlaceHf, PiecesAreCountedBeforeTheyAreMade) {
  // 2^40 pieces of one byte.
  EXPECT_TRUE(FailsWith(Place(Sharded(2, 1, {std::uint64_t{1} << 40, 1}, 1)),
                        StatusCode::kInvalidArgument,
                        {"rank 0", "1099511627776 pieces", "shards by columns", "\"w0\""}));
}

TEST(PlaceHf, ARunIsWhatLiesTogetherInTheTensor) {
  const auto runs = [](const Dims& shape, const Dims& sizes) {
    return RunsOf({"w", DType::kUInt8, shape, {}}, {Dims(shape.size(), 0), sizes});
  };
  EXPECT_EQ(runs({}, {}), 1U);
  EXPECT_EQ(runs({6}, {2}), 1U);
  EXPECT_EQ(runs({6, 5}, {2, 5}), 1U);
  EXPECT_EQ(runs({6, 5}, {6, 2}), 6U);
  EXPECT_EQ(runs({6, 5, 4}, {3, 2, 4}), 3U);
  EXPECT_EQ(runs({6, 5, 4}, {3, 2, 1}), 6U);
  EXPECT_EQ(runs({6, 5}, {0, 5}), 0U);
}

}  // namespace
}  // namespace varve::test::hf_place_test
