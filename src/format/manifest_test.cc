#include "format/manifest.h"

#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/checksum.h"
#include "format/chunk_grid.h"
#include "format/manifest_generated.h"
#include "support/checkpoints.h"
#include "support/random.h"
#include "support/sanitized.h"
#include "support/status_matchers.h"
#include "support/test_data.h"
#include "tensor/box.h"
#include "varve/storage.h"

namespace varve::manifest_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::Random;
using test::SampleMetadata;

Bytes Encode(const Metadata& metadata) {
  auto encoded = EncodeManifest(metadata);
  EXPECT_TRUE(IsOk(encoded));
  return encoded.ok() ? encoded->bytes : Bytes();
}

/// Returns the metadata with a tensor that is a grid of enough chunks to be kept as one: in two
/// files, and on both sides of a run.
Metadata WithGrids(Metadata metadata) {
  TensorMetadata tensor{"~grid", DType::kUInt8, {5, 3}, {}};
  ChunkCollector chunks(tensor.shape, tensor.dtype);
  for (std::uint32_t i = 0; i < 6; ++i) {
    const Box box{{i / 2 * 2, i % 2 * 2}, {i / 2 == 2 ? 1U : 2U, i % 2 == 1 ? 1U : 2U}};
    const std::uint64_t begin = metadata.files[i % 2].data_begin + i / 4;
    Chunk chunk{box, {i % 2, begin, begin + Volume(box.sizes)}};
    chunk.content.bytes[3] = static_cast<std::uint8_t>(i + 1);
    chunks.Add(std::move(chunk));
  }
  tensor.chunks = chunks.Take();
  EXPECT_NE(tensor.chunks.grid(), nullptr);
  metadata.tensors.push_back(std::move(tensor));
  return metadata;
}

TEST(Manifest, RoundTripsGrids) {
  const Metadata metadata = WithGrids(SampleMetadata());
  const auto decoded = DecodeManifest(Encode(metadata));
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(*decoded, WithoutHashes(metadata));
}

TEST(Manifest, RoundTripsButForTheHashesOfChunks) {
  const Metadata metadata = SampleMetadata();
  const auto decoded = DecodeManifest(Encode(metadata));
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_NE(*decoded, metadata);
  EXPECT_EQ(*decoded, WithoutHashes(metadata));
  EXPECT_EQ(Encode(*decoded), Encode(metadata));
}

TEST(Manifest, SameMetadataGivesTheSameBytes) {
  EXPECT_EQ(Encode(SampleMetadata()), Encode(SampleMetadata()));
}

TEST(Manifest, RoundTripsWithoutTensors) {
  Metadata metadata = SampleMetadata();
  metadata.tensors.clear();
  metadata.objects.clear();
  metadata.structures.clear();
  const auto decoded = DecodeManifest(Encode(metadata));
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(*decoded, WithoutHashes(metadata));
}

TEST(Manifest, RejectsEverySingleBitFlip) {
  Bytes bytes = Encode(SampleMetadata());
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_TRUE(FailsWith(DecodeManifest(bytes), StatusCode::kDataLoss)) << "bit " << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
  }
}

TEST(Manifest, RejectsEveryTruncationAndExtension) {
  const Bytes bytes = Encode(SampleMetadata());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_TRUE(
        FailsWith(DecodeManifest(std::string_view(bytes).substr(0, size)), StatusCode::kDataLoss))
        << size;
  }
  EXPECT_TRUE(FailsWith(DecodeManifest(bytes + '\0'), StatusCode::kDataLoss));
}

TEST(Manifest, RefusesANewerVersionWithAMessage) {
  const Bytes newer = test::SealManifest(test::PlainOfManifest(Encode(SampleMetadata())), 6);
  EXPECT_TRUE(FailsWith(DecodeManifest(newer), StatusCode::kUnimplemented,
                        {"format version 6", "use a newer Varve"}));
}

// ---- right checksums, wrong content ----

// Found by the fuzzer: the decoder allocated memory before it had checked anything else.
TEST(Manifest, DoesNotBelieveAFrameThatClaimsGigabytes) {
  constexpr std::size_t kPlainSizeAt = 20;  // docs/format.md section 6
  const auto encoded = EncodeManifest(SampleMetadata());
  ASSERT_TRUE(IsOk(encoded));
  Bytes bytes = encoded->bytes.substr(0, encoded->bytes.size() - 4);
  Bytes claim;
  ByteWriter(&claim).U64((std::uint64_t{1} << 31) - 1);
  bytes.replace(kPlainSizeAt, claim.size(), claim);
  ByteWriter(&bytes).U32(Crc32c(AsByteSpan(bytes)));
  EXPECT_TRUE(FailsWith(DecodeManifest(bytes), StatusCode::kDataLoss, {"frame sizes"}));
}

TEST(Manifest, RejectsMetadataThatContradictsItself) {
  struct Lie {
    const char* what;
    void (*tell)(Metadata*);
  };
  for (const Lie& lie : {
           Lie{"no ranks", [](Metadata* m) { m->world_size = 0; }},
           Lie{"blocks of no bytes", [](Metadata* m) { m->block_bytes = 0; }},
           Lie{"odd blocks", [](Metadata* m) { m->block_bytes = 4097; }},
           Lie{"huge blocks", [](Metadata* m) { m->block_bytes = std::uint64_t{16} << 20; }},
           Lie{"a path as name", [](Metadata* m) { m->files[0].name = "../../etc/passwd"; }},
           Lie{"a hidden name", [](Metadata* m) { m->files[0].name = ".."; }},
           Lie{"no name", [](Metadata* m) { m->files[0].name = ""; }},
           Lie{"too few blocks", [](Metadata* m) { m->files[0].block_crc32c.clear(); }},
           Lie{"a size that wraps",
               [](Metadata* m) {
                 m->files[0].size = ~std::uint64_t{0};
                 m->files[0].data_begin = 0;
                 m->files[0].block_crc32c.clear();
               }},
           Lie{"a header in mid-page", [](Metadata* m) { m->files[0].data_begin = 100; }},
           Lie{"an extent past the end",
               [](Metadata* m) { m->objects[0].extent.end = m->files[0].size + 1; }},
           Lie{"an extent in the header", [](Metadata* m) { m->objects[0].extent.begin = 0; }},
           Lie{"a file that is not there", [](Metadata* m) { m->structures[0].file = 2; }},
           Lie{"overlapping chunks",
               [](Metadata* m) { m->tensors[0].chunks.Listed()[1].box.offsets = {3, 0}; }},
           Lie{"a chunk missing", [](Metadata* m) { m->tensors[0].chunks.Listed().pop_back(); }},
           Lie{"a chunk outside",
               [](Metadata* m) { m->tensors[0].chunks.Listed()[1].box.offsets[0] = 5; }},
           Lie{"a chunk past the end of its file",
               [](Metadata* m) { m->tensors[0].chunks.Listed()[1].extent.begin += 1 << 20; }},
           Lie{"a chunk in the header",
               [](Metadata* m) { m->tensors[0].chunks.Listed()[0].extent.begin = 8; }},
           Lie{"a chunk of a file that is not there",
               [](Metadata* m) { m->tensors[0].chunks.Listed()[1].extent.file = 2; }},
           Lie{"a wrapping shape", [](Metadata* m) { m->tensors[0].shape[0] = ~std::uint64_t{0}; }},
           Lie{"names out of order", [](Metadata* m) { std::swap(m->tensors[0], m->tensors[1]); }},
           Lie{"one name twice", [](Metadata* m) { m->objects[1].fqn = m->objects[0].fqn; }},
       }) {
    Metadata metadata = SampleMetadata();
    lie.tell(&metadata);
    EXPECT_TRUE(FailsWith(DecodeManifest(Encode(metadata)), StatusCode::kDataLoss)) << lie.what;
  }
}

void ExpectNumbersFit(const Metadata& metadata) {
  for (const DataFile& file : metadata.files) {
    ASSERT_LE(file.data_begin, file.size);
    ASSERT_GE(file.block_crc32c.size(), (file.size - file.data_begin) / metadata.block_bytes);
  }
  for (const TensorMetadata& tensor : metadata.tensors) {
    ASSERT_TRUE(IsOk(CheckTiling(tensor)));
    for (const Chunk& chunk : tensor.chunks) {
      ASSERT_TRUE(IsOk(CheckBox(tensor.shape, chunk.box, ItemSize(tensor.dtype))));
      ASSERT_LT(chunk.extent.file, metadata.files.size());
      ASSERT_GE(chunk.extent.begin, metadata.files[chunk.extent.file].data_begin);
      ASSERT_EQ(chunk.extent.end - chunk.extent.begin,
                Volume(chunk.box.sizes) * ItemSize(tensor.dtype));
      ASSERT_LE(chunk.extent.end, metadata.files[chunk.extent.file].size);
    }
  }
}

// Any content behind right checksums ends in a Status, or in metadata whose numbers fit each other.
TEST(Manifest, NeverReturnsMetadataThatLiesWhateverTheBytes) {
  const auto first =
      ReadWholeFile(PosixStorage(), test::TestData() / "golden/native-v1/manifest.bin", 1 << 20);
  ASSERT_TRUE(IsOk(first));
  Random random(1);
  for (const auto& [version, manifest] :
       {std::pair(5U, Encode(WithGrids(SampleMetadata()))), std::pair(1U, Bytes(*first))}) {
    const Bytes good = test::PlainOfManifest(manifest);
    std::size_t read = 0;
    for (std::size_t at = 0; at < good.size(); at += test::kEveryByte) {
      for (const int byte : {0, 1, 0x7F, 0x80, 0xFF, static_cast<int>(random.Below(256))}) {
        Bytes plain = good;
        plain[at] = static_cast<char>(byte);
        const auto decoded = DecodeManifest(test::SealManifest(plain, version));
        if (!decoded.ok()) {
          ASSERT_TRUE(FailsWith(decoded, StatusCode::kDataLoss));
          continue;
        }
        ++read;
        ASSERT_NO_FATAL_FAILURE(ExpectNumbersFit(*decoded)) << at;
      }
    }
    EXPECT_GT(read, 0U);
  }
}

// Found by a reader: the number of the last file overflowed, and files far away were read.
TEST(Manifest, RefusesMoreChunksThanBoxesOrNumbers) {
  const Bytes good = test::PlainOfManifest(Encode(WithGrids(SampleMetadata())));
  for (const bool is_grid : {false, true}) {
    for (const std::uint64_t chunks : {std::uint64_t{3}, (std::uint64_t{1} << 33) + 1}) {
      std::vector<std::uint64_t> words(good.size() / 8 + 1);
      std::memcpy(words.data(), good.data(), good.size());
      const fb::Manifest& manifest = *fb::GetManifest(words.data());
      const auto at = manifest.layouts()->size() - 1;  // Of the grid, of six chunks in two runs.
      const fb::LayoutRecord was = *manifest.layouts()->Get(at);
      *const_cast<fb::LayoutRecord*>(manifest.layouts()->Get(at)) =
          fb::LayoutRecord(was.dims_begin(), manifest.dims()->size() - 4, chunks, was.runs_begin(),
                           1, was.rank(), was.dtype(), is_grid);
      const fb::RunRecord run = *manifest.runs()->Get(static_cast<std::uint32_t>(was.runs_begin()));
      *const_cast<fb::RunRecord*>(
          manifest.runs()->Get(static_cast<std::uint32_t>(was.runs_begin()))) =
          fb::RunRecord(chunks, run.begin(), 0, std::numeric_limits<std::int32_t>::min());
      const Bytes frame = test::SealManifest(
          std::string_view(reinterpret_cast<const char*>(words.data()), good.size()), 5);
      EXPECT_TRUE(FailsWith(DecodeManifest(frame), StatusCode::kDataLoss,
                            {"malformed manifest", chunks == 3 ? "~grid" : "more chunks"}))
          << is_grid << ", " << chunks;
    }
  }
}

/// Returns a manifest whose tensors are grids of so many bytes, each a chunk, all at one place.
Bytes ManifestOfGrids(const std::vector<std::string>& names, std::uint64_t chunks) {
  constexpr std::uint64_t kFew = 6;
  Metadata metadata = WithoutHashes(SampleMetadata());
  metadata.tensors.clear();
  for (const std::string& name : names) {
    ChunkGrid grid{*Cells::Of({kFew}, {1}), 1, {{kFew, metadata.files[0].data_begin, 0, 0}}, {}};
    metadata.tensors.push_back({name, DType::kUInt8, {kFew}, {}});
    metadata.tensors.back().chunks = ChunkList(std::make_shared<const ChunkGrid>(std::move(grid)));
  }
  const Bytes plain = test::PlainOfManifest(Encode(metadata));
  std::vector<std::uint64_t> words(plain.size() / 8 + 1);
  std::memcpy(words.data(), plain.data(), plain.size());
  const fb::Manifest& manifest = *fb::GetManifest(words.data());
  for (std::uint32_t i = 0; i < manifest.layouts()->size(); ++i) {
    auto* const layout = const_cast<fb::LayoutRecord*>(manifest.layouts()->Get(i));
    const auto run = static_cast<std::uint32_t>(layout->runs_begin());
    const_cast<std::uint64_t*>(manifest.dims()->data())[layout->dims_begin()] = chunks;
    *const_cast<fb::RunRecord*>(manifest.runs()->Get(run)) =
        fb::RunRecord(chunks, manifest.runs()->Get(run)->begin(), 0, 0);
    *layout = fb::LayoutRecord(layout->dims_begin(), layout->boxes_begin(), chunks,
                               layout->runs_begin(), 1, 1, layout->dtype(), true);
  }
  return test::SealManifest({reinterpret_cast<const char*>(words.data()), plain.size()}, 5);
}

// Found by a reader: records may share runs and boxes, and a few bytes claim many chunks.
TEST(Manifest, RefusesMoreChunksThanItsBytesCanBeOf) {
  constexpr std::uint64_t kMany = std::uint64_t{1} << 27;
  EXPECT_TRUE(IsOk(DecodeManifest(ManifestOfGrids({"a", "b"}, kMany))));
  for (const auto& [names, chunks] :
       {std::pair(std::vector<std::string>{"a", "b", "c"}, kMany),
        std::pair(std::vector<std::string>{"__varve__.ranks.1.a", "a"}, std::uint64_t{1000})}) {
    EXPECT_TRUE(FailsWith(DecodeManifest(ManifestOfGrids(names, chunks)), StatusCode::kDataLoss,
                          {"more chunks than there can be"}));
  }
}

// Found by a reader: chunks without bytes lie at one place of their file.
TEST(Manifest, RoundTripsSeveralChunksOfATensorWithoutElements) {
  Metadata metadata = WithoutHashes(SampleMetadata());
  TensorMetadata tensor{"~empty", DType::kUInt8, {0, 16}, {}};
  const std::uint64_t begin = metadata.files[0].data_begin;
  for (std::uint64_t column = 0; column < 16; column += 4) {
    tensor.chunks.Listed().push_back({{{0, column}, {0, 4}}, {0, begin, begin}});
  }
  metadata.tensors.push_back(std::move(tensor));
  EXPECT_EQ(DecodeManifest(Encode(metadata)).value(), metadata);
}

TEST(Manifest, AMillionChunksOfEqualShardsTakeFewBytes) {
  constexpr std::uint32_t kRanks = test::kSanitized ? 64 : 1024;
  Metadata metadata = SampleMetadata();
  metadata.tensors.clear();
  const DataFile file = metadata.files[0];
  metadata.files.clear();
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    metadata.files.push_back(file);
    metadata.files.back().rank = rank;
  }
  for (int i = 0; i < 1000; ++i) {
    TensorMetadata& tensor = metadata.tensors.emplace_back();
    tensor.fqn = "layers." + std::to_string(1000 + i);
    tensor.shape = {kRanks, 2};
    ChunkCollector chunks(tensor.shape, tensor.dtype);
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      chunks.Add({{{rank, 0}, {1, 2}}, {rank, file.data_begin, file.data_begin + 2}, {{1}}});
    }
    tensor.chunks = chunks.Take();
    ASSERT_NE(tensor.chunks.grid(), nullptr);
    EXPECT_EQ(tensor.chunks.grid()->runs.size(), 1U);
  }
  const auto encoded = EncodeManifest(metadata);
  ASSERT_TRUE(IsOk(encoded));
  EXPECT_LT(encoded->bytes.size(), 64U << 10U);
  EXPECT_EQ(DecodeManifest(encoded->bytes).value(), WithoutHashes(metadata));
}

TEST(Metadata, FindsEachNameAndNoOther) {
  const Metadata metadata = SampleMetadata();
  for (const TensorMetadata& tensor : metadata.tensors) {
    EXPECT_EQ(metadata.FindTensor(tensor.fqn), &tensor);
    EXPECT_EQ(metadata.FindObject(tensor.fqn), nullptr);
    EXPECT_EQ(metadata.FindTensor(tensor.fqn + "x"), nullptr);
  }
  EXPECT_NE(metadata.FindObject("lr"), nullptr);
  EXPECT_EQ(metadata.FindTensor(""), nullptr);
}

}  // namespace
}  // namespace varve::manifest_test
