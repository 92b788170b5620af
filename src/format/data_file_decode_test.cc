// Damaged and hostile data file headers.

#include <gtest/gtest.h>

#include "base/checksum.h"
#include "format/data_file.h"
#include "support/checkpoints.h"
#include "support/random.h"
#include "support/sanitized.h"
#include "support/status_matchers.h"
#include "tensor/box.h"

namespace varve::data_file_decode_test {
namespace {

using test::FailsWith;
using test::HeaderWith;
using test::IsOk;
using test::MustEncode;
using test::Random;
using test::ResealHeader;
using test::SampleHeader;

Result<DataFileHeader> Decode(std::string_view bytes) {
  std::uint32_t crc = 0;
  return DecodeHeader(bytes, &crc);
}

DataFileHeader SmallHeader() {
  return HeaderWith(0, 1, {{"w", DType::kInt8, {4}, {{0}, {4}}, {}, {}}}, {"lr"});
}

/// Returns the encoding with `from` replaced, as long as before (the padding gives way), and a
/// right checksum.
Bytes Tampered(const DataFileHeader& header, std::string_view from, std::string_view to) {
  Bytes bytes = MustEncode(header);
  const std::size_t size = bytes.size();
  const std::size_t at = bytes.find(from);
  EXPECT_NE(at, Bytes::npos) << from;
  if (at != Bytes::npos) {
    bytes.replace(at, from.size(), to);
    bytes.resize(size, ' ');
  }
  return ResealHeader(std::move(bytes));
}

TEST(DecodeHeader, RejectsEverySingleBitFlip) {
  Bytes bytes = MustEncode(SmallHeader());
  ASSERT_TRUE(IsOk(Decode(bytes)));
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_TRUE(FailsWith(Decode(bytes), StatusCode::kDataLoss)) << "bit " << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
  }
}

TEST(DecodeHeader, RejectsEveryTruncationAndExtension) {
  const Bytes bytes = MustEncode(SmallHeader());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_TRUE(FailsWith(Decode(std::string_view(bytes).substr(0, size)), StatusCode::kDataLoss))
        << size;
  }
  EXPECT_TRUE(FailsWith(Decode(bytes + " "), StatusCode::kDataLoss));
}

TEST(DecodeHeader, RefusesANewerVersionWithAMessage) {
  const Bytes newer = Tampered(SmallHeader(), R"(\"format\":1)", R"(\"format\":4)");
  EXPECT_TRUE(FailsWith(Decode(newer), StatusCode::kUnimplemented,
                        {"format version 4", "reads up to 3", "use a newer Varve"}));
}

TEST(DecodeHeader, RejectsAForeignSafetensorsFile) {
  Bytes json = R"({"w":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}})";
  json.resize(4096 - 8, ' ');
  Bytes bytes;
  ByteWriter writer(&bytes);
  writer.U64(json.size());
  writer.Raw(json);
  EXPECT_TRUE(FailsWith(Decode(bytes), StatusCode::kDataLoss, {"no Varve checksum"}));
}

TEST(HeaderBytesFromPrefix, RejectsAbsurdLengths) {
  const auto prefix = [](std::uint64_t length) {
    Bytes bytes;
    ByteWriter(&bytes).U64(length);
    return bytes;
  };
  EXPECT_EQ(*HeaderBytesFromPrefix(prefix(4096 - 8)), 4096U);
  const auto loss = StatusCode::kDataLoss;
  EXPECT_TRUE(FailsWith(HeaderBytesFromPrefix(prefix(4096)), loss, {"4096-byte boundary"}));
  EXPECT_TRUE(FailsWith(HeaderBytesFromPrefix(prefix(100'000'001)), loss, {"exceeds"}));
  EXPECT_TRUE(FailsWith(HeaderBytesFromPrefix(prefix(~std::uint64_t{0})), loss, {"exceeds"}));
  EXPECT_TRUE(FailsWith(HeaderBytesFromPrefix("1234567"), loss));
}

// ---- right checksums, wrong content ----

struct Lie {
  const char* from;
  const char* to;
  const char* phrase;
};

TEST(DecodeHeader, RejectsLiesAboutGeometry) {
  for (const Lie& lie : {
           Lie{R"("shape":[4],"data_off)", R"("shape":[5],"data_off)", "size"},
           Lie{R"("data_offsets":[0,4])", R"("data_offsets":[1,5])", "hole"},
           Lie{R"("data_offsets":[0,4])", R"("data_offsets":[4,0])", "byte range"},
           Lie{R"("shape":[4],"data_off)", R"("shape":{} ,"data_off)", "list"},
           Lie{R"("dtype":"I8")", R"("dtype":"X8")", "unknown dtype"},
           Lie{R"("dtype":"I8")", R"("dtypo":"I8")", "\"dtype\" is missing"},
           Lie{R"(\"lr\":[4,5])", R"(\"lr\":[4,6])", "end where"},
           Lie{R"(\"lr\":[4,5])", R"(\"lr\":[3,5])", "hole"},
           Lie{R"(\"world_size\":1)", R"(\"world_size\":0)", "world_size"},
           Lie{R"(\"rank\":0)", R"(\"rank\":1)", "world_size"},
           Lie{R"(\"block_bytes\":4096)", R"(\"block_bytes\":4095)", "block_bytes"},
           Lie{R"(\"block_bytes\":4096)", R"(\"block_bytes\":0000)", ""},
           Lie{R"(\"xxh3\":\")", R"(\"xxhx\":\")", "xxh3"},
           Lie{R"(\"blocks_crc32c\":\"01)", R"(\"blocks_crc32c\":\"0Z)", "hex"},
           Lie{R"(\"xxh3\":\")", R"(\"xxh3\":\"00)", "one hash per chunk"},
           Lie{R"(\"blocks_crc32c\":\"01)", R"(\"blocks_crc32c\":\")", "one checksum per block"},
           Lie{R"(\"blocks_crc32c\":\")", R"(\"blocks_crc32c\":\"00000000)", "per block"},
           Lie{R"(\"save_id\":\"00)", R"(\"save_id\":\"0G)", "save_id"},
       }) {
    EXPECT_TRUE(FailsWith(Decode(Tampered(SmallHeader(), lie.from, lie.to)), StatusCode::kDataLoss,
                          {lie.phrase}))
        << lie.to;
  }
}

TEST(DecodeHeader, RejectsLiesAboutTheContentOfValues) {
  DataFileHeader header = SmallHeader();
  header.objects[0].content.bytes[0] = 7;
  for (const Lie& lie : {
           Lie{R"(\"objects_xxh3\":\"07)", R"(\"objects_xxh3\":\")", "one hash per value"},
           Lie{R"(\"objects_xxh3\":\"07)", R"(\"objects_xxh3\":\"0Z)", "hex"},
       }) {
    EXPECT_TRUE(
        FailsWith(Decode(Tampered(header, lie.from, lie.to)), StatusCode::kDataLoss, {lie.phrase}))
        << lie.to;
  }
}

TEST(DecodeHeader, RejectsAShardOutsideItsTensor) {
  const DataFileHeader header = HeaderWith(0, 1, {{"w", DType::kInt8, {9}, {{5}, {4}}, {}, {}}});
  EXPECT_TRUE(IsOk(Decode(MustEncode(header))));
  EXPECT_TRUE(FailsWith(Decode(Tampered(header, R"(\"offsets\":[5])", R"(\"offsets\":[6])")),
                        StatusCode::kDataLoss, {"outside shape"}));
}

TEST(DecodeHeader, RejectsTensorsThatShareBytes) {
  const DataFileHeader header = HeaderWith(0, 1,
                                           {{"aaaa", DType::kInt8, {4}, {{0}, {4}}, {}, {}},
                                            {"bbbb", DType::kInt8, {4}, {{0}, {4}}, {}, {}}});
  EXPECT_TRUE(FailsWith(Decode(Tampered(header, "[4,8]", "[0,4]")), StatusCode::kDataLoss,
                        {"hole or overlap before tensor \"bbbb\""}));
}

TEST(DecodeHeader, RejectsANameThatAppearsTwice) {
  const DataFileHeader header = HeaderWith(0, 1,
                                           {{"aaaa", DType::kInt8, {4}, {{0}, {4}}, {}, {}},
                                            {"bbbb", DType::kInt8, {4}, {{0}, {4}}, {}, {}}});
  EXPECT_TRUE(FailsWith(Decode(Tampered(header, R"("bbbb":)", R"("aaaa":)")), StatusCode::kDataLoss,
                        {"duplicate"}));
}

DataFileHeader HeaderWithAliases() {
  DataFileHeader header = SmallHeader();
  header.aliases = {{"v", "w"}, {"x", "w"}};
  return header;
}

TEST(DecodeHeader, GivesBackAliasesInVersion2AndIgnoresThemInVersion1) {
  const Bytes bytes = MustEncode(HeaderWithAliases());
  EXPECT_NE(bytes.find(R"(\"format\":2,)"), Bytes::npos);
  const auto header = Decode(bytes);
  ASSERT_TRUE(IsOk(header));
  EXPECT_EQ(header->aliases, HeaderWithAliases().aliases);
  const auto older = Decode(Tampered(HeaderWithAliases(), R"(\"format\":2)", R"(\"format\":1)"));
  ASSERT_TRUE(IsOk(older));
  EXPECT_TRUE(older->aliases.empty());
}

TEST(DecodeHeader, RejectsAliasesThatStandForNothingOrForTwoThings) {
  for (const Lie& lie : {
           Lie{R"(\"v\":\"w\")", R"(\"v\":\"u\")", "alias \"v\""},
           Lie{R"(\"v\":\"w\")", R"(\"v\":\"x\")", "alias \"v\""},
           Lie{R"(\"v\":\"w\")", R"(\"w\":\"w\")", "alias \"w\""},
           Lie{R"(\"v\":\"w\")", R"(\"x\":\"w\")", "alias \"x\""},
           Lie{R"(\"v\":\"w\")", R"(\"lr\":\"w\")", "alias \"lr\""},
           Lie{R"(\"v\":\"w\")", R"(\"v\":7)", "alias \"v\""},
           Lie{R"(\"v\":\"w\")", R"(\"__varve__.v\":\"w\")", "alias"},
           Lie{R"(\"aliases\":{)", R"(\"aliases\":7,\"y\":{)", "not an object"},
       }) {
    EXPECT_TRUE(FailsWith(Decode(Tampered(HeaderWithAliases(), lie.from, lie.to)),
                          StatusCode::kDataLoss, {lie.phrase}))
        << lie.to;
  }
}

TEST(DecodeHeader, RefusesAliasesThatStandForChunksWithoutEnd) {
  std::vector<StoredChunk> chunks;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    chunks.push_back({"w", DType::kInt8, {2000}, {{i}, {1}}, {}, {}});
  }
  DataFileHeader header = HeaderWith(0, 1, std::move(chunks));
  for (int i = 0; i < 501; ++i) {
    header.aliases.push_back({"a" + std::to_string(i), "w"});
  }
  EXPECT_TRUE(FailsWith(CheckAliases(header), StatusCode::kInvalidArgument, {"1002000 chunks"}));
  std::uint32_t crc = 0;
  EXPECT_FALSE(EncodeHeader(header, &crc).ok());
  header.aliases.pop_back();
  EXPECT_TRUE(IsOk(Decode(MustEncode(header))));
}

// Found by the fuzzer: a shard's key is free, and the name behind it was not checked.
TEST(DecodeHeader, RejectsNamesThatTheFormatItselfUses) {
  const DataFileHeader header =
      HeaderWith(0, 1, {{"0123456789ab", DType::kInt8, {9}, {{5}, {4}}, {}, {}}});
  EXPECT_TRUE(IsOk(Decode(MustEncode(header))));
  for (const char* name : {"__metadata__", "__varve__.xy"}) {
    EXPECT_TRUE(FailsWith(
        Decode(Tampered(header, R"(\"fqn\":\"0123456789ab)", R"(\"fqn\":\")" + std::string(name))),
        StatusCode::kDataLoss, {"reserved"}));
  }
}

// Any change with a right checksum ends in a Status, or in a header whose numbers fit each other.
TEST(DecodeHeader, NeverReturnsAHeaderThatLiesWhateverTheBytes) {
  const Bytes good = MustEncode(SampleHeader());
  const std::size_t text_end = good.find_last_not_of(' ') + 1;
  Random random(1);
  int accepted = 0;
  for (std::size_t at = 8; at < text_end; at += test::kEveryByte) {
    for (const char byte : {'0', '9', '"', '}', ',', static_cast<char>(random.Below(256))}) {
      Bytes bytes = good;
      bytes[at] = byte;
      const auto header = Decode(ResealHeader(std::move(bytes)));
      if (!header.ok()) {
        continue;
      }
      ++accepted;
      for (const StoredChunk& chunk : header->chunks) {
        ASSERT_TRUE(IsOk(CheckBox(chunk.shape(), chunk.box, ItemSize(chunk.dtype()))));
        ASSERT_LE(chunk.bytes.end, header->data_bytes);
        ASSERT_EQ(chunk.bytes.end - chunk.bytes.begin,
                  Volume(chunk.box.sizes) * ItemSize(chunk.dtype()));
      }
      for (const StoredObject& object : header->objects) {
        ASSERT_TRUE(object.bytes.begin <= object.bytes.end &&
                    object.bytes.end <= header->data_bytes);
      }
      ASSERT_EQ(
          header->block_crc32c.size(),
          (header->data_bytes + header->identity.block_bytes - 1) / header->identity.block_bytes);
    }
  }
  EXPECT_GT(accepted, 100) << "names and hashes can be changed without contradiction";
}

}  // namespace
}  // namespace varve::data_file_decode_test
