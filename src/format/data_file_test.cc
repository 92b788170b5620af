#include "format/data_file.h"

#include <gtest/gtest.h>
#include <simdjson.h>

#include "base/checksum.h"
#include "support/checkpoints.h"
#include "support/random.h"
#include "support/status_matchers.h"

namespace varve::data_file_test {
namespace {

using test::FailsWith;
using test::HeaderWith;
using test::IsOk;
using test::MustEncode;
using test::SampleHeader;

/// The header as a safetensors reader sees it.
struct Json {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  explicit Json(std::string_view header) {
    EXPECT_FALSE(parser.parse(header.data() + 8, header.size() - 8).get(root));
  }
  std::string At(std::string_view pointer) {
    simdjson::dom::element element;
    if (root.at_pointer(pointer).get(element)) {
      return "(missing)";
    }
    return simdjson::minify(element);
  }
};

TEST(DataFileHeader, RoundTrips) {
  const DataFileHeader header = SampleHeader();
  std::uint32_t written_crc = 0;
  const auto bytes = EncodeHeader(header, &written_crc);
  ASSERT_TRUE(IsOk(bytes));
  std::uint32_t read_crc = 0;
  const auto decoded = DecodeHeader(*bytes, &read_crc);
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(*decoded, header);
  EXPECT_EQ(read_crc, written_crc);
  EXPECT_EQ(*HeaderChecksum(*bytes), written_crc);
  EXPECT_TRUE(IsOk(CheckHeader(*bytes, written_crc)));
  EXPECT_TRUE(FailsWith(CheckHeader(*bytes, written_crc + 1), StatusCode::kDataLoss));
}

TEST(DataFileHeader, RoundTripsWithTheContentOfValues) {
  DataFileHeader header = SampleHeader();
  header.objects[1].content.bytes[0] = 7;
  std::uint32_t crc = 0;
  const auto decoded = DecodeHeader(MustEncode(header), &crc);
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(*decoded, header);
}

TEST(DataFileHeader, RoundTripsWithNothingInIt) {
  const DataFileHeader header = HeaderWith(0, 1, {});
  std::uint32_t crc = 0;
  const auto decoded = DecodeHeader(MustEncode(header), &crc);
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(*decoded, header);
}

TEST(DataFileHeader, RoundTripsEveryElementType) {
  std::vector<StoredChunk> chunks;
  for (std::uint8_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string name(DTypeName(dtype));
    chunks.push_back({name, dtype, {3, 2}, {{0, 0}, {3, 2}}, {}, {}});
    chunks.push_back({name + " part", dtype, {3, 2}, {{1, 1}, {2, 1}}, {}, {}});
    chunks.push_back({name + " scalar", dtype, {}, {}, {}, {}});
  }
  const DataFileHeader header = HeaderWith(0, 1, chunks);
  std::uint32_t crc = 0;
  const auto decoded = DecodeHeader(MustEncode(header), &crc);
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(*decoded, header);
}

TEST(DataFileHeader, IsPaddedSoThatDataStartsOnAPage) {
  for (std::size_t chunks = 0; chunks < 200; chunks += 7) {
    std::vector<StoredChunk> list;
    for (std::size_t i = 0; i < chunks; ++i) {
      list.push_back({"tensor." + std::to_string(i), DType::kInt8, {5}, {{0}, {5}}, {}, {}});
    }
    const Bytes bytes = MustEncode(HeaderWith(0, 1, list));
    EXPECT_EQ(bytes.size() % kDataAlignment, 0U);
    EXPECT_EQ(*HeaderBytesFromPrefix(std::string_view(bytes).substr(0, 8)), bytes.size());
  }
}

/// Returns the header before its data are written.
DataFileHeader Unfilled(DataFileHeader header) {
  header.block_crc32c.clear();
  for (StoredChunk& chunk : header.chunks) {
    chunk.content = {};
  }
  return header;
}

TEST(DataFileHeader, SizeDoesNotDependOnChecksums) {
  const DataFileHeader full = SampleHeader();
  EXPECT_EQ(MustEncode(Unfilled(full)).size(), MustEncode(full).size());
}

TEST(DataFileHeader, ThatIsFilledIsTheOneThatIsEncodedWithItsChecksums) {
  DataFileHeader full = SampleHeader();
  // As the field, but that it is quoted.
  full.chunks[0].of =
      MakeSpec(R"(\"blocks_crc32c\":\")", full.chunks[0].dtype(), full.chunks[0].shape());
  ASSERT_TRUE(IsOk(LayOut(&full)));
  std::vector<Hash128> contents;
  for (const StoredChunk& chunk : full.chunks) {
    contents.push_back(chunk.content);
  }
  std::uint32_t crc = 0;
  const auto encoded = EncodeHeader(full, &crc);
  ASSERT_TRUE(IsOk(encoded));
  for (Bytes filled : {MustEncode(Unfilled(full)), *encoded}) {
    std::uint32_t filled_crc = 0;
    ASSERT_TRUE(IsOk(FillHeader(full.block_crc32c, contents, &filled, &filled_crc)));
    EXPECT_EQ(filled, *encoded);
    EXPECT_EQ(filled_crc, crc);
  }
}

TEST(DataFileHeader, IsNotFilledWithMoreOrFewerChecksums) {
  const DataFileHeader full = SampleHeader();
  std::uint32_t crc = 0;
  for (const std::size_t blocks : {full.block_crc32c.size(), full.block_crc32c.size() + 1}) {
    for (const std::size_t chunks : {full.chunks.size() - 1, full.chunks.size()}) {
      Bytes bytes = MustEncode(full);
      const Status filled = FillHeader(std::vector<std::uint32_t>(blocks),
                                       std::vector<Hash128>(chunks), &bytes, &crc);
      EXPECT_EQ(filled.ok(), blocks == full.block_crc32c.size() && chunks == full.chunks.size());
    }
  }
}

TEST(LayOut, PacksChunksAlignedForTheirType) {
  const DataFileHeader header = SampleHeader();
  std::uint64_t at = 0;
  for (const StoredChunk& chunk : header.chunks) {
    EXPECT_EQ(chunk.bytes.begin, at);
    EXPECT_EQ(chunk.bytes.begin % ItemSize(chunk.dtype()), 0U) << chunk.fqn();
    at = chunk.bytes.end;
  }
  for (const StoredObject& object : header.objects) {
    EXPECT_EQ(object.bytes.begin, at);
    at = object.bytes.end;
  }
  EXPECT_EQ(header.structure, (ByteRange{at, at + 7}));
  EXPECT_EQ(header.data_bytes, at + 7);
}

TEST(LayOut, RefusesSizesThatOverflow) {
  const std::uint64_t big = std::uint64_t{1} << 61;
  DataFileHeader header;
  header.chunks = {{"a", DType::kInt8, {big}, {{0}, {big}}, {}, {}},
                   {"b", DType::kInt8, {big}, {{0}, {big}}, {}, {}},
                   {"c", DType::kInt8, {big}, {{0}, {big}}, {}, {}}};
  EXPECT_TRUE(FailsWith(LayOut(&header), StatusCode::kInvalidArgument, {"2^62"}));
  header.chunks = {{"a", DType::kInt8, {big, big}, {{0, 0}, {big, big}}, {}, {}}};
  EXPECT_TRUE(FailsWith(LayOut(&header), StatusCode::kInvalidArgument, {"2^62"}));
}

TEST(DataFileName, TellsRankAndWorldAndForRankLocalSavesTheSave) {
  DataFileHeader header = HeaderWith(3, 8, {});
  EXPECT_EQ(DataFileName(header), "data-00003-of-00008.safetensors");
  header.identity.coordinated = false;
  EXPECT_EQ(DataFileName(header), "data-00003-of-00008-000102030405.safetensors");
}

// ---- what other readers of safetensors see ----

TEST(DataFileHeader, StoresTypesSafetensorsLacksAsBytes) {
  const Bytes bytes = MustEncode(SampleHeader());
  Json json(bytes);
  EXPECT_EQ(json.At("/complex/dtype"), "\"U8\"");
  EXPECT_EQ(json.At("/complex/shape"), "[2,16]");
}

TEST(DataFileHeader, CountsFourBitValuesOneByOne) {
  Json json(MustEncode(SampleHeader()));
  EXPECT_EQ(json.At("/four bit/dtype"), "\"F4\"");
  EXPECT_EQ(json.At("/four bit/shape"), "[2,8]");  // Two rows of four pairs.
}

TEST(DataFileHeader, NamesASecondPieceOfATensorByItsPlace) {
  Json json(MustEncode(SampleHeader()));
  EXPECT_EQ(json.At("/model.w/shape"), "[2,6]");
  EXPECT_EQ(json.At("/model.w@[2, 3]/shape"), "[2,3]");
}

TEST(DataFileHeader, KeepsNamesApartEvenWhereOneLooksLikeThePlaceOfAnother) {
  const DataFileHeader header = HeaderWith(0, 1,
                                           {{"w", DType::kInt8, {4}, {{0}, {2}}, {}, {}},
                                            {"w", DType::kInt8, {4}, {{2}, {2}}, {}, {}},
                                            {"w@[2]", DType::kInt8, {4}, {{0}, {4}}, {}, {}}});
  std::uint32_t crc = 0;
  const auto decoded = DecodeHeader(MustEncode(header), &crc);
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(*decoded, header);
}

std::string ShardingInfo(const DataFileHeader& header) {
  Json json(MustEncode(header));
  simdjson::dom::element info;
  std::string_view text;
  if (json.root.at_pointer("/__metadata__/DCP_SHARDING_INFO").get(info) || info.get(text)) {
    return "(missing)";
  }
  return std::string(text);
}

TEST(DataFileHeader, HasDcpShardingInfoOnlyWhenATensorIsSharded) {
  const StoredChunk whole{"a", DType::kInt8, {4}, {{0}, {4}}, {}, {}};
  const StoredChunk part{"b", DType::kInt8, {4}, {{2}, {2}}, {}, {}};
  EXPECT_EQ(ShardingInfo(HeaderWith(0, 1, {whole}, {"object"})), "(missing)");
  EXPECT_EQ(ShardingInfo(HeaderWith(0, 1, {part, whole})),
            R"({"a":{"saved_offsets":[0]},"b":{"saved_offsets":[2]}})");
  EXPECT_EQ(ShardingInfo(HeaderWith(0, 1, {part}, {"object"})),
            R"({"b":{"saved_offsets":[2]},"__varve__.values.rank00000":{"saved_offsets":[0]}})");
}

TEST(DataFileHeader, DcpOffsetsHaveTheRankOfTheStoredShape) {
  std::vector<StoredChunk> chunks;
  for (std::uint8_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string name(DTypeName(dtype));
    chunks.push_back({name, dtype, {3, 2}, {{1, 1}, {2, 1}}, {}, {}});
    chunks.push_back({name + "0", dtype, {}, {}, {}, {}});
  }
  const DataFileHeader header = HeaderWith(0, 1, chunks);
  Json json(MustEncode(header));
  simdjson::dom::parser parser;
  simdjson::dom::object info;
  const std::string text = ShardingInfo(header);
  ASSERT_FALSE(parser.parse(text).get(info));
  EXPECT_EQ(info.size(), chunks.size());
  for (const auto& [name, entry] : info) {
    simdjson::dom::array offsets;
    simdjson::dom::array shape;
    ASSERT_FALSE(entry["saved_offsets"].get(offsets));
    ASSERT_FALSE(json.root.at_key(name).at_key("shape").get(shape)) << name;
    EXPECT_EQ(offsets.size(), shape.size()) << name;
  }
}

}  // namespace
}  // namespace varve::data_file_test
