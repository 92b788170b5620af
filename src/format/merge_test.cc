#include <algorithm>

#include <gtest/gtest.h>

#include "format/manifest.h"
#include "support/checkpoints.h"
#include "support/status_matchers.h"

namespace varve::merge_test {
namespace {

using test::Checked;
using test::FailsWith;
using test::HeaderWith;
using test::IsOk;

constexpr auto kLoss = StatusCode::kDataLoss;

/// Returns rows [begin, end) of an 8 x 4 tensor.
StoredChunk Rows(std::uint64_t begin, std::uint64_t end) {
  return {"w", DType::kFloat32, {8, 4}, {{begin, 0}, {end - begin, 4}}, {}, {}};
}

std::vector<CheckedHeader> Merged(std::vector<DataFileHeader> headers) {
  std::vector<CheckedHeader> checked;
  for (const DataFileHeader& header : headers) {
    checked.push_back(Checked(header));
  }
  return checked;
}

TEST(MergeHeaders, DescribesWhereEveryPieceLies) {
  const DataFileHeader first = HeaderWith(0, 2, {Rows(0, 3)}, {"a"});
  const DataFileHeader second = HeaderWith(1, 2, {Rows(3, 8)}, {"b"});
  const auto metadata = MergeHeaders(Merged({first, second}));
  ASSERT_TRUE(IsOk(metadata));
  ASSERT_EQ(metadata->tensors.size(), 1U);
  const TensorMetadata& tensor = metadata->tensors[0];
  const std::uint64_t begin = metadata->files[1].data_begin;
  EXPECT_EQ(begin % kDataAlignment, 0U);
  ASSERT_EQ(tensor.chunks.size(), 2U);
  EXPECT_EQ(tensor.chunks[1].box, (Box{{3, 0}, {5, 4}}));
  EXPECT_EQ(tensor.chunks[1].extent, (Extent{1, begin, begin + 80}));
  EXPECT_EQ(tensor.chunks[1].content, second.chunks[0].content);
  EXPECT_EQ(metadata->objects[1].extent, (Extent{1, begin + 80, begin + 81}));
  EXPECT_EQ(metadata->files[1].name, "data-00001-of-00002.safetensors");
  EXPECT_EQ(metadata->files[1].size, begin + 81);
}

TEST(MergeHeaders, DoesNotDependOnTheOrderOfTheFiles) {
  std::vector<DataFileHeader> headers{HeaderWith(0, 3, {Rows(6, 8)}, {"a"}),
                                      HeaderWith(1, 3, {Rows(0, 3)}, {"b"}),
                                      HeaderWith(2, 3, {Rows(3, 6)})};
  const auto want = MergeHeaders(Merged(headers));
  ASSERT_TRUE(IsOk(want));
  std::vector<std::size_t> order{0, 1, 2};
  do {
    const auto got =
        MergeHeaders(Merged({headers[order[0]], headers[order[1]], headers[order[2]]}));
    ASSERT_TRUE(IsOk(got));
    EXPECT_EQ(*got, *want);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(MergeHeaders, GivesAnAliasTheChunksOfTheTensorThatItStandsFor) {
  DataFileHeader first = HeaderWith(0, 2, {Rows(0, 3)});
  DataFileHeader second = HeaderWith(1, 2, {Rows(3, 8)});
  first.aliases = second.aliases = {{"head", "w"}, {"tail", "w"}};
  const auto metadata = MergeHeaders(Merged({first, second}));
  ASSERT_TRUE(IsOk(metadata));
  ASSERT_EQ(metadata->tensors.size(), 3U);
  for (const TensorMetadata& tensor : metadata->tensors) {
    EXPECT_EQ(tensor.chunks, metadata->FindTensor("w")->chunks);
    EXPECT_EQ(tensor.shape, (Dims{8, 4}));
  }
}

TEST(MergeHeaders, RefusesAnAliasThatOneFileLacksOrStoresItself) {
  DataFileHeader first = HeaderWith(0, 2, {Rows(0, 3)});
  first.aliases = {{"head", "w"}};
  EXPECT_TRUE(FailsWith(MergeHeaders(Merged({first, HeaderWith(1, 2, {Rows(3, 8)})})), kLoss,
                        {"tensor \"head\"", "no rank stored"}));
  StoredChunk all = Rows(0, 8);
  all.of = MakeSpec("head", all.dtype(), all.shape());
  EXPECT_TRUE(FailsWith(MergeHeaders(Merged({first, HeaderWith(1, 2, {Rows(3, 8), all})})), kLoss,
                        {"tensor \"head\"", "overlap"}));
  EXPECT_TRUE(FailsWith(MergeHeaders(Merged({first, HeaderWith(1, 2, {Rows(3, 8)}, {"head"})})),
                        kLoss, {"\"head\""}));
}

TEST(MergeHeaders, RefusesFilesOfDifferentSaves) {
  DataFileHeader other = HeaderWith(1, 2, {Rows(4, 8)});
  other.identity.save_id = test::SaveIdFrom(7);
  EXPECT_TRUE(FailsWith(MergeHeaders(Merged({HeaderWith(0, 2, {Rows(0, 4)}), other})), kLoss,
                        {"different saves", "0001020304", "0708090a0b"}));
}

TEST(MergeHeaders, RefusesFilesThatDisagreeAboutTheWorld) {
  EXPECT_TRUE(FailsWith(
      MergeHeaders(Merged({HeaderWith(0, 2, {Rows(0, 4)}), HeaderWith(1, 3, {Rows(4, 8)})})), kLoss,
      {"rank 1 and rank 0 disagree"}));
}

TEST(MergeHeaders, RefusesTwoFilesOfOneRank) {
  EXPECT_TRUE(FailsWith(
      MergeHeaders(Merged({HeaderWith(1, 2, {Rows(0, 4)}), HeaderWith(1, 2, {Rows(4, 8)})})), kLoss,
      {"two data files of rank 1"}));
}

TEST(MergeHeaders, RefusesNoFiles) { EXPECT_TRUE(FailsWith(MergeHeaders({}), kLoss)); }

TEST(MergeHeaders, NamesATensorWhoseTypeOrShapeDiffers) {
  StoredChunk half = Rows(4, 8);
  half.of = MakeSpec("w", DType::kFloat16, half.shape());
  EXPECT_TRUE(
      FailsWith(MergeHeaders(Merged({HeaderWith(0, 2, {Rows(0, 4)}), HeaderWith(1, 2, {half})})),
                kLoss, {"tensor \"w\"", "rank 1 has float16[8, 4]", "float32[8, 4]"}));
  StoredChunk longer = Rows(4, 8);
  longer.of = MakeSpec("w", longer.dtype(), {9, 4});
  EXPECT_TRUE(
      FailsWith(MergeHeaders(Merged({HeaderWith(0, 2, {Rows(0, 4)}), HeaderWith(1, 2, {longer})})),
                kLoss, {"float32[9, 4]"}));
}

TEST(MergeHeaders, NamesATensorWhoseChunksOverlap) {
  EXPECT_TRUE(FailsWith(
      MergeHeaders(Merged({HeaderWith(0, 2, {Rows(0, 5)}), HeaderWith(1, 2, {Rows(4, 8)})})), kLoss,
      {"tensor \"w\"", "overlap"}));
}

TEST(MergeHeaders, NamesTheHole) {
  EXPECT_TRUE(FailsWith(
      MergeHeaders(Merged({HeaderWith(0, 2, {Rows(0, 3)}), HeaderWith(1, 2, {Rows(5, 8)})})), kLoss,
      {"tensor \"w\" of shape [8, 4]", "no rank stored [3:5, 0:4]"}));
}

TEST(MergeHeaders, KeepsTheLowestRanksCopyOfARankLocalReplica) {
  DataFileHeader first = HeaderWith(0, 2, {Rows(0, 8)}, {"lr"});
  DataFileHeader second = HeaderWith(1, 2, {Rows(0, 8)}, {"lr"});
  first.identity.coordinated = false;
  second.identity.coordinated = false;
  const auto metadata = MergeHeaders(Merged({second, first}));
  ASSERT_TRUE(IsOk(metadata));
  ASSERT_EQ(metadata->tensors[0].chunks.size(), 1U);
  EXPECT_EQ(metadata->tensors[0].chunks[0].extent.file, 0U);
  ASSERT_EQ(metadata->objects.size(), 1U);
  EXPECT_EQ(metadata->objects[0].extent.file, 0U);
}

TEST(MergeHeaders, RefusesReplicasInACoordinatedSave) {
  EXPECT_TRUE(FailsWith(
      MergeHeaders(Merged({HeaderWith(0, 2, {Rows(0, 8)}), HeaderWith(1, 2, {Rows(0, 8)})})), kLoss,
      {"overlap"}));
  EXPECT_TRUE(
      FailsWith(MergeHeaders(Merged({HeaderWith(0, 2, {}, {"lr"}), HeaderWith(1, 2, {}, {"lr"})})),
                kLoss, {"object \"lr\" is stored by two ranks"}));
}

TEST(MergeHeaders, RefusesOneNameForATensorAndAnObject) {
  EXPECT_TRUE(
      FailsWith(MergeHeaders(Merged({HeaderWith(0, 2, {Rows(0, 8)}), HeaderWith(1, 2, {}, {"w"})})),
                kLoss, {"\"w\"", "both as a tensor and as an object"}));
}

/// Headers of ranks that each hold two of the rows of two tensors and a value of their own.
std::vector<CheckedHeader> OfTwoTensors(std::uint32_t ranks) {
  std::vector<CheckedHeader> headers;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const Box rows{{rank * 2, 0}, {2, 4}};
    const StoredChunk v{"v", DType::kFloat32, {ranks * 2, 4}, rows, {}, {}};
    const StoredChunk w{"w", DType::kFloat32, {ranks * 2, 4}, rows, {}, {}};
    headers.push_back(Checked(HeaderWith(rank, ranks, {v, w}, {"rng" + std::to_string(rank)})));
    for (StoredChunk& chunk : headers.back().header.chunks) {
      chunk.content = {};
    }
  }
  return headers;
}

/// Adds a header by its box, as one whose chunks are those of the file before.
Result<bool> AddAlike(CheckedHeader file, HeaderMerge* merge) {
  const std::vector<Box> boxes{file.header.chunks[0].box};
  file.header.chunks.clear();
  return merge->AddAlike(file, boxes, std::vector<std::uint32_t>{0, 0});
}

TEST(MergeHeaders, FilesLikeTheOneBeforeAreAddedByTheirBoxes) {
  const std::vector<CheckedHeader> headers = OfTwoTensors(12);
  HeaderMerge merge;
  for (std::size_t rank = 0; rank < headers.size(); ++rank) {
    if (rank < 4 || rank == 8) {  // A list of fewer chunks is no grid yet.
      EXPECT_EQ(AddAlike(headers[rank], &merge).value(), rank == 8);
    }
    if (rank < 4) {
      ASSERT_TRUE(IsOk(merge.Add(headers[rank])));
    } else if (rank == 7) {
      ASSERT_TRUE(IsOk(merge.Add(headers[rank]))) << "one that is given whole in between";
    } else if (rank != 8) {
      EXPECT_TRUE(AddAlike(headers[rank], &merge).value()) << rank;
    }
  }
  const auto merged = merge.Finish();
  ASSERT_TRUE(IsOk(merged));
  EXPECT_EQ(*merged, MergeHeaders(headers).value());
}

TEST(MergeHeaders, AFileIsNotLikeTheOneBeforeWhereItsBytesOrBoxesAreOthers) {
  const std::vector<CheckedHeader> headers = OfTwoTensors(12);
  HeaderMerge merge;
  for (std::size_t rank = 0; rank < 5; ++rank) {
    ASSERT_TRUE(IsOk(merge.Add(headers[rank])));
  }
  CheckedHeader longer = headers[5];
  longer.header_bytes += kDataAlignment;
  EXPECT_FALSE(AddAlike(longer, &merge).value());
  CheckedHeader further = headers[5];
  further.header.chunks[0].box = headers[6].header.chunks[0].box;
  EXPECT_FALSE(AddAlike(further, &merge).value());
  for (std::size_t rank = 5; rank < 12; ++rank) {
    EXPECT_TRUE(AddAlike(headers[rank], &merge).value());
  }
  CheckedHeader beyond = headers[11];
  beyond.header.identity.rank = 12;
  EXPECT_FALSE(AddAlike(beyond, &merge).value());
  EXPECT_EQ(merge.Finish().value(), MergeHeaders(headers).value());
}

TEST(MergeHeaders, KeepsScalarAndEmptyTensors) {
  const auto metadata = MergeHeaders(
      Merged({HeaderWith(0, 1,
                         {{"scalar", DType::kInt64, {}, {}, {}, {}},
                          {"empty", DType::kInt64, {0, 3}, {{0, 0}, {0, 3}}, {}, {}}})}));
  ASSERT_TRUE(IsOk(metadata));
  EXPECT_NE(metadata->FindTensor("scalar"), nullptr);
  EXPECT_NE(metadata->FindTensor("empty"), nullptr);
}

}  // namespace
}  // namespace varve::merge_test
