#include "interop/olmo/pieces.h"

#include <gtest/gtest.h>

#include "support/status_matchers.h"
#include "tensor/box.h"

namespace varve::pieces_test {
namespace {

using test::FailsWith;
using test::IsOk;

constexpr auto kDataLoss = StatusCode::kDataLoss;

/// Files of bytes, and how often they are read.
struct Files {
  std::vector<std::string> contents;
  std::vector<RecordCrc> records{};
  mutable int reads = 0;

  [[nodiscard]] ReplicaCheck Check() const {
    FileNames names;
    for (std::size_t i = 0; i < contents.size(); ++i) {
      names.push_back("rank" + std::to_string(i) + ".pt");
    }
    return {names, records, [this](std::uint32_t file, std::uint64_t begin, std::uint64_t end) {
              ++reads;
              return Result<std::string>(contents.at(file).substr(begin, end - begin));
            }};
  }
};

Extent At(std::uint32_t file, std::uint64_t begin, std::uint64_t end) {
  return {file, begin, end, Encoding::kPlain};
}

/// Elements [begin, end) of uint8, at byte `at` of a file.
FlatPiece Piece(std::uint32_t file, std::uint64_t begin, std::uint64_t end, std::uint64_t at = 0) {
  return {begin, end, DType::kUInt8, At(file, at, at + end - begin)};
}

// ---- replicas ----

TEST(OlmoReplicas, AreEqualWhenTheirBytesAre) {
  const Files files{{"abcd", "xxab"}};
  EXPECT_TRUE(IsOk(files.Check().Equal(At(0, 0, 2), At(1, 2, 4), "w")));
  EXPECT_TRUE(FailsWith(files.Check().Equal(At(0, 1, 3), At(1, 2, 4), "w"), kDataLoss,
                        {"w", "rank0.pt and rank1.pt", "different values"}));
}

TEST(OlmoReplicas, AreNotReadWhenChecksumsOfTheSameRecordsAreEqual) {
  const Files files{{"abcd", "xxxx"}, {{0, 0, 4, 9}, {1, 0, 4, 9}}};
  EXPECT_TRUE(IsOk(files.Check().Equal(At(0, 1, 3), At(1, 1, 3), "w")));
  EXPECT_EQ(files.reads, 0);
}

TEST(OlmoReplicas, AreDifferentWhenChecksumsOfAllOfThemAre) {
  const Files files{{"abcd", "abcd"}, {{0, 0, 4, 9}, {1, 0, 4, 8}}};
  EXPECT_TRUE(FailsWith(files.Check().Equal(At(0, 0, 4), At(1, 0, 4), "w"), kDataLoss));
  EXPECT_EQ(files.reads, 0);
}

TEST(OlmoReplicas, AreReadWhenTheyArePartsOfDifferentRecords) {
  const Files files{{"abcd", "abxx"}, {{0, 0, 4, 9}, {1, 0, 4, 8}}};
  EXPECT_TRUE(IsOk(files.Check().Equal(At(0, 0, 2), At(1, 0, 2), "w")));
  EXPECT_GT(files.reads, 0);
}

TEST(OlmoReplicas, OfDifferentSizesAreDifferent) {
  const Files files{{"abcd", "abcd"}};
  EXPECT_TRUE(FailsWith(files.Check().Equal(At(0, 0, 2), At(1, 0, 3), "w"), kDataLoss));
}

// ---- pieces ----

TEST(OlmoPieces, BecomeRunsOfTheWholeTensor) {
  const Files files{{"abcdef", "ghijklmnopqr"}};
  const auto tensor = TensorOfPieces("w", {3, 6}, {Piece(1, 6, 18), Piece(0, 0, 6)}, files.Check());
  ASSERT_TRUE(IsOk(tensor));
  ASSERT_EQ(tensor->chunks.size(), 2);
  EXPECT_EQ(tensor->chunks[0].box, (Box{{0, 0}, {1, 6}}));
  EXPECT_EQ(tensor->chunks[1].box, (Box{{1, 0}, {2, 6}}));
}

TEST(OlmoPieces, ThatCutARowHaveABoxForEachPartOfIt) {
  const Files files{{"abcdefgh"}};
  const auto tensor = TensorOfPieces("w", {3, 4}, {Piece(0, 2, 10)}, files.Check());
  ASSERT_TRUE(IsOk(tensor));
  ASSERT_EQ(tensor->chunks.size(), 3);
  EXPECT_EQ(tensor->chunks[0].box, (Box{{0, 2}, {1, 2}}));
  EXPECT_EQ(tensor->chunks[1].box, (Box{{1, 0}, {1, 4}}));
  EXPECT_EQ(tensor->chunks[2].box, (Box{{2, 0}, {1, 2}}));
  EXPECT_EQ(tensor->chunks[2].extent, At(0, 6, 8));
}

TEST(OlmoPieces, ThatOverlapMustBeEqualAndCountOnce) {
  const Files files{{"abcd", "cdef"}};
  const auto tensor = TensorOfPieces("w", {6}, {Piece(0, 0, 4), Piece(1, 2, 6)}, files.Check());
  ASSERT_TRUE(IsOk(tensor));
  ASSERT_EQ(tensor->chunks.size(), 2);
  EXPECT_EQ(tensor->chunks[1].box, (Box{{4}, {2}}));
  EXPECT_EQ(tensor->chunks[1].extent, At(1, 2, 4));
}

TEST(OlmoPieces, ThatOverlapAndDifferNameTheRangeAndBothFiles) {
  const Files files{{"abcd", "cXef"}};
  EXPECT_TRUE(FailsWith(TensorOfPieces("w", {6}, {Piece(0, 0, 4), Piece(1, 2, 6)}, files.Check()),
                        kDataLoss, {"\"w\", elements [2, 4)", "rank0.pt and rank1.pt"}));
}

TEST(OlmoPieces, ThatLieInsideSeveralOthersAreComparedWithEach) {
  const Files files{{"ab", "cd", "abcd", "abXd"}};
  const std::vector<FlatPiece> parts{Piece(0, 0, 2), Piece(1, 2, 4)};
  auto with = [&](std::uint32_t file) {
    std::vector<FlatPiece> all = parts;
    all.push_back(Piece(file, 0, 4));
    return all;
  };
  EXPECT_TRUE(IsOk(TensorOfPieces("w", {4}, with(2), files.Check())));
  EXPECT_TRUE(FailsWith(TensorOfPieces("w", {4}, with(3), files.Check()), kDataLoss,
                        {"elements [2, 4)", "rank1.pt", "rank3.pt"}));
}

TEST(OlmoPieces, LeaveOutWhatNoRankStores) {
  const Files files{{"ab", "cd"}};
  const auto tensor = TensorOfPieces("w", {6}, {Piece(0, 0, 2), Piece(1, 4, 6)}, files.Check());
  ASSERT_TRUE(IsOk(tensor));
  EXPECT_EQ(tensor->chunks.size(), 2) << "verify and load find the hole";
  const auto none = TensorOfPieces("w", {6}, {}, files.Check());
  ASSERT_TRUE(IsOk(none));
  EXPECT_TRUE(none->chunks.empty());
}

TEST(OlmoPieces, OfDifferentDTypesAreAnErrorThatNamesBoth) {
  const Files files{{"ab", "cd"}};
  FlatPiece other = Piece(1, 2, 4);
  other.dtype = DType::kInt8;
  EXPECT_TRUE(FailsWith(TensorOfPieces("w", {4}, {Piece(0, 0, 2), other}, files.Check()), kDataLoss,
                        {"uint8 in rank0.pt", "int8 in rank1.pt"}));
}

TEST(OlmoPieces, OfAShapeThatOverflowsInTheirDTypeAreRefused) {
  const Files files{{std::string(16, 'a')}};
  FlatPiece piece{0, 1, DType::kComplex128, At(0, 0, 16)};
  EXPECT_TRUE(FailsWith(TensorOfPieces("w", {std::uint64_t{1} << 60}, {piece}, files.Check()),
                        kDataLoss, {"larger than 2^62 bytes"}));
}

TEST(OlmoPieces, OfAScalarAreOneBoxWithoutDimensions) {
  const Files files{{"a"}};
  const auto tensor = TensorOfPieces("w", {}, {Piece(0, 0, 1)}, files.Check());
  ASSERT_TRUE(IsOk(tensor));
  ASSERT_EQ(tensor->chunks.size(), 1);
  EXPECT_TRUE(tensor->chunks[0].box.sizes.empty());
}

}  // namespace
}  // namespace varve::pieces_test
