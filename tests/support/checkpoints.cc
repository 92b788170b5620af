#include "support/checkpoints.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include "base/checked.h"
#include "base/checksum.h"
#include "support/status_matchers.h"

namespace varve::test {
namespace {

constexpr std::string_view kHeaderChecksum = R"(\"header_crc32c\":\")";
constexpr std::size_t kManifestHead = 8 + 4 + 8 + 8;

}  // namespace

SaveId SaveIdFrom(std::uint8_t first) {
  SaveId id;
  for (std::uint8_t i = 0; i < id.bytes.size(); ++i) {
    id.bytes[i] = static_cast<std::uint8_t>(first + i);
  }
  return id;
}

DataFileHeader HeaderWith(std::uint32_t rank, std::uint32_t world_size,
                          std::vector<StoredChunk> chunks,
                          const std::vector<std::string>& objects) {
  DataFileHeader header;
  header.identity.save_id = SaveIdFrom(0);
  header.identity.rank = rank;
  header.identity.world_size = world_size;
  header.identity.created_ns = 1'700'000'000'123'456'789;
  header.identity.block_bytes = 4096;
  header.chunks = std::move(chunks);
  for (const std::string& fqn : objects) {
    header.objects.push_back({fqn, {0, 1}});
  }
  EXPECT_TRUE(IsOk(LayOut(&header)));
  for (std::size_t i = 0; i < header.chunks.size(); ++i) {
    header.chunks[i].content = Xxh3(AsByteSpan(std::to_string(i)));
  }
  header.block_crc32c.resize(DivideUp(header.data_bytes, header.identity.block_bytes));
  for (std::uint32_t i = 0; i < header.block_crc32c.size(); ++i) {
    header.block_crc32c[i] = 0x01000000 + i;
  }
  return header;
}

DataFileHeader SampleHeader() {
  DataFileHeader header =
      HeaderWith(1, 4,
                 {
                     {"model.embed", DType::kBFloat16, {100, 64}, {{0, 0}, {100, 64}}, {}, {}},
                     {"model.w", DType::kFloat32, {4, 6}, {{0, 0}, {2, 6}}, {}, {}},
                     {"model.w", DType::kFloat32, {4, 6}, {{2, 3}, {2, 3}}, {}, {}},
                     {"complex", DType::kComplex128, {3}, {{1}, {2}}, {}, {}},
                     {"four bit", DType::kFloat4E2M1FNX2, {2, 8}, {{0, 4}, {2, 4}}, {}, {}},
                     {"empty", DType::kInt64, {0, 5}, {{0, 0}, {0, 5}}, {}, {}},
                     {"step", DType::kInt64, {}, {}, {}, {}},
                     {"quote \" and \\ and \xC3\xA9", DType::kBool, {3}, {{0}, {3}}, {}, {}},
                 },
                 {"lr", "epoch"});
  header.structure = ByteRange{0, 7};
  EXPECT_TRUE(IsOk(LayOut(&header)));
  return header;
}

Bytes MustEncode(const DataFileHeader& header) {
  std::uint32_t crc = 0;
  auto bytes = EncodeHeader(header, &crc);
  EXPECT_TRUE(IsOk(bytes));
  return bytes.ok() ? *bytes : Bytes();
}

CheckedHeader Checked(const DataFileHeader& header) {
  std::uint32_t crc = 0;
  const auto bytes = EncodeHeader(header, &crc);
  EXPECT_TRUE(IsOk(bytes));
  return {header, bytes.ok() ? bytes->size() : 0, crc};
}

Metadata SampleMetadata() {
  const Dims shape{8, 4};
  DataFileHeader first = HeaderWith(0, 2,
                                    {{"a.weight", DType::kFloat32, shape, {{0, 0}, {4, 4}}, {}, {}},
                                     {"scalar", DType::kInt64, {}, {}, {}, {}},
                                     {"nothing", DType::kInt8, {0}, {{0}, {0}}, {}, {}}},
                                    {"lr", "rng/0"});
  first.structure = ByteRange{0, 5};
  EXPECT_TRUE(IsOk(LayOut(&first)));
  const DataFileHeader second =
      HeaderWith(1, 2, {{"a.weight", DType::kFloat32, shape, {{4, 0}, {4, 4}}, {}, {}}}, {"rng/1"});
  auto metadata = MergeHeaders({Checked(first), Checked(second)});
  EXPECT_TRUE(IsOk(metadata));
  return metadata.ok() ? *metadata : Metadata();
}

Bytes ResealHeader(Bytes bytes) {
  const std::size_t field = bytes.find(kHeaderChecksum);
  const auto crc = HeaderChecksum(bytes);
  if (field != Bytes::npos && crc.ok()) {
    bytes.replace(field + kHeaderChecksum.size(), 8, HexU32(*crc));
  }
  return bytes;
}

Bytes SealManifest(std::string_view plain, std::uint32_t version) {
  Bytes compressed(ZSTD_compressBound(plain.size()), '\0');
  compressed.resize(
      ZSTD_compress(compressed.data(), compressed.size(), plain.data(), plain.size(), 1));
  Bytes out;
  ByteWriter writer(&out);
  writer.Raw("VARVEMF\n");
  writer.U32(version);
  writer.U64(compressed.size());
  writer.U64(plain.size());
  writer.Raw(compressed);
  writer.U32(Crc32c(AsByteSpan(out)));
  return out;
}

Bytes PlainOfManifest(std::string_view manifest) {
  ByteReader head(manifest.substr(8 + 4));
  const std::uint64_t compressed = head.U64();
  Bytes plain(head.U64(), '\0');
  const std::size_t got =
      ZSTD_decompress(plain.data(), plain.size(), manifest.data() + kManifestHead, compressed);
  EXPECT_EQ(got, plain.size());
  return plain;
}

}  // namespace varve::test
