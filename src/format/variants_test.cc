#include "format/variants.h"

#include <gtest/gtest.h>

#include "format/data_file.h"
#include "format/manifest.h"
#include "support/checkpoints.h"
#include "support/status_matchers.h"

namespace varve::variants_test {
namespace {

using test::Checked;
using test::FailsWith;
using test::HeaderWith;
using test::IsOk;

constexpr auto kLoss = StatusCode::kDataLoss;

using Ranks = std::vector<std::uint32_t>;

/// Returns rows [begin, end) of a tensor of 8 x 4.
StoredChunk Rows(std::uint64_t begin, std::uint64_t end) {
  return {"w", DType::kFloat32, {8, 4}, {{begin, 0}, {end - begin, 4}}, {}, {}};
}

/// Returns an entry of `rows` rows, all of the tensor with that name.
StoredChunk Entry(std::string name, std::uint64_t rows) {
  return {std::move(name), DType::kFloat32, {rows, 4}, {{0, 0}, {rows, 4}}, {}, {}};
}

/// Returns files of 4 ranks: rank 3 had other rows 4 to 8, and another "step".
std::vector<CheckedHeader> Files() {
  return {
      Checked(HeaderWith(0, 4, {Rows(0, 4)}, {"step"})),
      Checked(HeaderWith(1, 4, {Rows(4, 6)})),
      Checked(HeaderWith(2, 4, {Rows(6, 8)}, {"__varve__.ranks.1-3.step"})),
      Checked(HeaderWith(3, 4, {Entry("__varve__.ranks.3@[4, 0].w", 4)})),
  };
}

TEST(Variants, AreNamedByTheRanksThatHeldThem) {
  const std::pair<Ranks, std::string> samples[] = {{{0}, "0"},
                                                   {{1, 2}, "1-2"},
                                                   {{1, 3}, "1,3"},
                                                   {{1, 3, 4, 5, 7}, "1,3-5,7"},
                                                   {{8, 16, 24, 32, 33}, "8-32:8,33"}};
  for (const auto& [ranks, text] : samples) {
    const auto ranges = RangesOf(ranks);
    EXPECT_EQ(ToString(std::span(ranges)), text);
    for (std::uint32_t rank = 0; rank < 40; ++rank) {
      EXPECT_EQ(HasRank(ranges, rank), std::find(ranks.begin(), ranks.end(), rank) != ranks.end())
          << rank << " in " << text;
    }
    for (const std::optional<Dims>& offsets : {std::optional<Dims>(), std::optional(Dims{4, 0})}) {
      const VariantName name{"a.b@[1].w", ranges, offsets};
      const auto parsed = ParseVariantName(ToString(name));
      ASSERT_TRUE(IsOk(parsed));
      EXPECT_EQ(*parsed, name);
    }
  }
}

TEST(Variants, OfNamesThatAreNotWellFormedAreDamage) {
  for (const char* name :
       {"w", "__varve__.ranks.", "__varve__.ranks..w", "__varve__.ranks.x.w", "__varve__.ranks.1",
        "__varve__.ranks.3-1.w", "__varve__.ranks.1-4:2.w", "__varve__.ranks.1-4:0.w",
        "__varve__.ranks.2,1.w", "__varve__.ranks.1@[].w", "__varve__.ranks.1@[1,2].w",
        "__varve__.ranks.1@[1.w", "__varve__.ranks.99999999999.w"}) {
    EXPECT_TRUE(FailsWith(ParseVariantName(name), kLoss, {"names no ranks"})) << name;
  }
}

TEST(Variants, AreApartFromTheTensorsInAMergeOfHeaders) {
  const auto merged = MergeHeaders(Files());
  ASSERT_TRUE(IsOk(merged));
  ASSERT_EQ(merged->tensors.size(), 1U);
  EXPECT_EQ(merged->tensors[0].chunks.size(), 3U);
  ASSERT_EQ(merged->tensor_variants.size(), 1U);
  const TensorVariant& variant = merged->tensor_variants[0];
  EXPECT_EQ(variant.fqn, "w");
  EXPECT_EQ(variant.box, (Box{{4, 0}, {4, 4}}));
  EXPECT_EQ(variant.ranks, (std::vector<RankRange>{{3, 3, 1}}));
  ASSERT_EQ(variant.chunks.size(), 1U);
  EXPECT_EQ(variant.chunks[0].box, variant.box) << "in the whole tensor";
  ASSERT_EQ(merged->object_variants.size(), 1U);
  EXPECT_EQ(merged->object_variants[0].fqn, "step");
  EXPECT_EQ(merged->SeveralValues(),
            (std::map<std::string, std::size_t, std::less<>>{{"step", 2}, {"w", 2}}));
}

/// The files of three ranks that have saved apart: rank 1 holds another value of each name.
std::vector<CheckedHeader> FilesOfRanksApart() {
  std::vector<CheckedHeader> files;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    DataFileHeader header = HeaderWith(rank, 3, {Entry("v", 2), Entry("w", 4)}, {"step"});
    header.identity.coordinated = false;
    header.objects[0].content.bytes[0] = rank == 1 ? 7 : 1;
    header.chunks[1].content.bytes[0] = rank == 1 ? 7 : 1;
    files.push_back(Checked(header));
  }
  return files;
}

TEST(Variants, AreWhatRanksThatSavedApartHoldInPlaceOfTheLowestRanks) {
  const auto merged = MergeHeaders(FilesOfRanksApart());
  ASSERT_TRUE(IsOk(merged));
  EXPECT_EQ(merged->SeveralValues(),
            (std::map<std::string, std::size_t, std::less<>>{{"step", 2}, {"w", 2}}));
  ASSERT_EQ(merged->tensor_variants.size(), 1U);
  EXPECT_EQ(merged->tensor_variants[0].ranks, (std::vector<RankRange>{{1, 1, 1}}));
  EXPECT_EQ(ValuesOfRank(*merged, 1).objects[0].extent.file, 1U);
  EXPECT_EQ(ValuesOfRank(*merged, 2), *merged);
  const auto encoded = EncodeManifest(*merged);
  ASSERT_TRUE(IsOk(encoded));
  const auto decoded = DecodeManifest(encoded->bytes);
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(*decoded, WithoutHashes(*merged)) << "what repair writes";
}

TEST(Variants, OfARankThatSavedApartAreNotInItsOwnFile) {
  const auto merged_with = [](const auto& change) {
    auto files = FilesOfRanksApart();
    DataFileHeader header = files[1].header;
    change(&header);
    files[1] = Checked(header);
    return MergeHeaders(std::move(files));
  };
  const std::string name = "__varve__.ranks.1.w";
  EXPECT_TRUE(FailsWith(merged_with([&](DataFileHeader* header) {
                          StoredChunk& chunk = header->chunks[1];
                          chunk.of = MakeSpec(name, chunk.dtype(), chunk.shape());
                        }),
                        StatusCode::kDataLoss, {name, "rank 1"}));
  EXPECT_TRUE(FailsWith(merged_with([&](DataFileHeader* header) { header->objects[0].fqn = name; }),
                        StatusCode::kDataLoss, {name, "rank 1"}));
  EXPECT_TRUE(FailsWith(
      merged_with([](DataFileHeader* header) { header->chunks.push_back(header->chunks[1]); }),
      StatusCode::kDataLoss, {"\"w\"", "rank 1 has", "twice"}));
}

TEST(Variants, AreNotGuessedWhereAFileDoesNotSayWhatItsValuesAre) {
  auto files = FilesOfRanksApart();
  DataFileHeader older = files[1].header;
  older.objects[0].content = {};
  files[1] = Checked(older);
  const auto merged = MergeHeaders(std::move(files));
  ASSERT_TRUE(IsOk(merged));
  EXPECT_TRUE(merged->object_variants.empty());
}

TEST(Variants, StayInTheManifest) {
  const auto merged = MergeHeaders(Files());
  ASSERT_TRUE(IsOk(merged));
  const auto encoded = EncodeManifest(*merged);
  ASSERT_TRUE(IsOk(encoded));
  const auto decoded = DecodeManifest(encoded->bytes);
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(*decoded, WithoutHashes(*merged));
}

TEST(Variants, AreTheValuesOfTheirRanks) {
  const auto merged = MergeHeaders(Files());
  ASSERT_TRUE(IsOk(merged));
  EXPECT_EQ(ValuesOfRank(*merged, 0), *merged);
  const Metadata second = ValuesOfRank(*merged, 1);
  EXPECT_EQ(second.tensors, merged->tensors);
  EXPECT_EQ(second.objects[0].extent.file, 2U);
  const Metadata last = ValuesOfRank(*merged, 3);
  ASSERT_EQ(last.tensors[0].chunks.size(), 2U);
  EXPECT_EQ(last.tensors[0].chunks[0], merged->tensors[0].chunks[0]);
  EXPECT_EQ(last.tensors[0].chunks[1].extent.file, 3U);
  EXPECT_TRUE(IsOk(CheckTiling(last.tensors[0])));
}

TEST(Variants, MustFitWhatTheyAreVariantsOf) {
  const auto with = [](std::string name, std::uint64_t rows) {
    auto files = Files();
    files[3] = Checked(HeaderWith(3, 4, {Entry(std::move(name), rows)}));
    return MergeHeaders(std::move(files)).status();
  };
  EXPECT_TRUE(IsOk(with("__varve__.ranks.3.w", 8)));
  EXPECT_TRUE(FailsWith(with("__varve__.ranks.3.v", 8), kLoss, {"no tensor of its kind"}));
  EXPECT_TRUE(FailsWith(with("__varve__.ranks.3.w", 4), kLoss, {"no part of its tensor"}));
  EXPECT_TRUE(FailsWith(with("__varve__.ranks.3@[6, 0].w", 4), kLoss, {"no part"}));
  EXPECT_TRUE(FailsWith(with("__varve__.ranks.3@[4].w", 4), kLoss, {"no part"}));
  EXPECT_TRUE(FailsWith(with("__varve__.ranks.3@[3, 0].w", 4), kLoss, {"cuts a chunk"}));
  for (const char* name : {"__varve__.ranks.03.w", "__varve__.ranks.3@[0, 0].w"}) {
    EXPECT_TRUE(FailsWith(with(name, 8), kLoss, {"not written as a variant's name is"})) << name;
  }
  EXPECT_TRUE(FailsWith(with("__varve__.ranks.4.w", 8), kLoss, {"outside of the world"}));
}

TEST(Variants, NeedAVersionOfTheirOwn) {
  const Bytes plain = test::MustEncode(HeaderWith(0, 4, {Rows(0, 8)}));
  const Bytes bytes = test::MustEncode(HeaderWith(3, 4, {Entry("__varve__.ranks.3.w", 8)}));
  EXPECT_NE(plain.find(R"(\"format\":1,)"), Bytes::npos);
  const auto at = bytes.find(R"(\"format\":3,)");
  ASSERT_NE(at, Bytes::npos);
  std::uint32_t crc = 0;
  EXPECT_TRUE(IsOk(DecodeHeader(bytes, &crc)));
}

}  // namespace
}  // namespace varve::variants_test
