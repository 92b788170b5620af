#include "format/manifest.h"

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/checksum.h"
#include "support/checkpoints.h"
#include "support/random.h"
#include "support/status_matchers.h"
#include "tensor/box.h"

namespace varve::manifest_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::Random;
using test::SampleMetadata;

Bytes Encode(const Metadata& metadata) {
  auto bytes = EncodeManifest(metadata);
  EXPECT_TRUE(IsOk(bytes));
  return bytes.ok() ? *bytes : Bytes();
}

TEST(Manifest, RoundTrips) {
  const Metadata metadata = SampleMetadata();
  const auto decoded = DecodeManifest(Encode(metadata));
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(*decoded, metadata);
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
  EXPECT_EQ(*decoded, metadata);
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
  const Bytes newer = test::SealManifest(test::PlainOfManifest(Encode(SampleMetadata())), 2);
  EXPECT_TRUE(FailsWith(DecodeManifest(newer), StatusCode::kUnimplemented,
                        {"format version 2", "use a newer Varve"}));
}

// ---- right checksums, wrong content ----

// Found by the fuzzer: the decoder allocated memory before it had checked anything else.
TEST(Manifest, DoesNotBelieveAFrameThatClaimsGigabytes) {
  constexpr std::size_t kPlainSizeAt = 20;  // docs/format.md section 6
  Bytes bytes = Encode(SampleMetadata());
  bytes.resize(bytes.size() - 4);
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
               [](Metadata* m) { m->tensors[0].chunks[1].box.offsets = {3, 0}; }},
           Lie{"a chunk missing", [](Metadata* m) { m->tensors[0].chunks.pop_back(); }},
           Lie{"a chunk outside", [](Metadata* m) { m->tensors[0].chunks[1].box.offsets[0] = 5; }},
           Lie{"a chunk of another size",
               [](Metadata* m) { --m->tensors[0].chunks[0].extent.end; }},
           Lie{"an unknown type",
               [](Metadata* m) { m->tensors[0].dtype = static_cast<DType>(kDTypeCount); }},
           Lie{"a wrapping shape", [](Metadata* m) { m->tensors[0].shape[0] = ~std::uint64_t{0}; }},
           Lie{"names out of order", [](Metadata* m) { std::swap(m->tensors[0], m->tensors[1]); }},
           Lie{"one name twice", [](Metadata* m) { m->objects[1].fqn = m->objects[0].fqn; }},
       }) {
    Metadata metadata = SampleMetadata();
    lie.tell(&metadata);
    EXPECT_TRUE(FailsWith(DecodeManifest(Encode(metadata)), StatusCode::kDataLoss)) << lie.what;
  }
}

// Any content behind right checksums ends in a Status, or in metadata whose numbers fit each other.
TEST(Manifest, NeverReturnsMetadataThatLiesWhateverTheBytes) {
  const Bytes good = test::PlainOfManifest(Encode(SampleMetadata()));
  Random random(1);
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int byte : {0, 1, 0x7F, 0x80, 0xFF, static_cast<int>(random.Below(256))}) {
      Bytes plain = good;
      plain[at] = static_cast<char>(byte);
      const auto metadata = DecodeManifest(test::SealManifest(plain));
      if (!metadata.ok()) {
        ASSERT_TRUE(FailsWith(metadata, StatusCode::kDataLoss));
        continue;
      }
      for (const DataFile& file : metadata->files) {
        ASSERT_LE(file.data_begin, file.size);
        ASSERT_GE(file.block_crc32c.size(), (file.size - file.data_begin) / metadata->block_bytes);
      }
      for (const TensorMetadata& tensor : metadata->tensors) {
        ASSERT_TRUE(IsOk(CheckTiling(tensor)));
        for (const Chunk& chunk : tensor.chunks) {
          ASSERT_TRUE(IsOk(CheckBox(tensor.shape, chunk.box, ItemSize(tensor.dtype))));
          ASSERT_LT(chunk.extent.file, metadata->files.size());
          ASSERT_LE(chunk.extent.end, metadata->files[chunk.extent.file].size);
        }
      }
    }
  }
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
