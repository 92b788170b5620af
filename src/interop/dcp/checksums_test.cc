#include "interop/dcp/checksums.h"

#include <gtest/gtest.h>

#include "interop/dcp/encode.h"
#include "support/sanitized.h"
#include "support/status_matchers.h"

namespace varve::checksums_test {
namespace {

using test::FailsWith;
using test::IsOk;

Metadata Sample() {
  Metadata metadata;
  metadata.format = Format::kDcp;
  metadata.world_size = 2;
  metadata.block_bytes = 4096;
  metadata.files.push_back({.name = "__0_0.distcp", .size = 9000, .block_crc32c = {1, 2, 3}});
  metadata.files.push_back({.name = "__1_0.distcp", .rank = 1});
  Chunk upper{{{0, 0}, {2, 8}}, {0, 100, 1100, Encoding::kTorchItem}};
  upper.payload = 64;
  Chunk lower{{{2, 0}, {2, 8}}, {1, 0, 1000, Encoding::kTorchItem}};
  metadata.tensors.push_back({"w", DType::kFloat32, {4, 8}, {upper, lower}});
  metadata.objects.push_back({"step", {0, 1100, 1200, Encoding::kTorchItem}});
  return metadata;
}

std::string SealedSample() {
  const Metadata metadata = Sample();
  std::string index = EncodeDcpMetadata(metadata).value();
  EXPECT_TRUE(IsOk(AppendDcpChecksums(metadata, &index)));
  return index;
}

/// Returns the metadata that a reader decodes from `index`.
Result<Metadata> Read(const std::string& index) {
  DcpAttributeList attributes;
  VARVE_ASSIGN_OR_RETURN(Decoded decoded, DecodeDcpMetadata(index, &attributes));
  for (const auto& [name, value] : attributes) {
    if (name == kDcpChecksums) {
      VARVE_RETURN_IF_ERROR(ApplyDcpChecksums(index, value, &decoded.metadata));
      return std::move(decoded.metadata);
    }
  }
  if (HoldsDcpChecksums(index)) {
    return DataLoss("hidden");
  }
  return std::move(decoded.metadata);
}

TEST(DcpChecksums, ComeBackWithTheIndex) {
  const auto metadata = Read(SealedSample());
  ASSERT_TRUE(IsOk(metadata));
  EXPECT_EQ(metadata->block_bytes, 4096U);
  EXPECT_EQ(metadata->files[0].size, 9000U);
  EXPECT_EQ(metadata->files[0].block_crc32c, (std::vector<std::uint32_t>{1, 2, 3}));
  EXPECT_TRUE(metadata->files[1].block_crc32c.empty());
  EXPECT_EQ(metadata->tensors[0].chunks[0].payload, 64U);
  EXPECT_EQ(metadata->tensors[0].chunks[1].payload, 0U);
}

TEST(DcpChecksums, NoByteBeforeThemCanChangeUnnoticed) {
  const std::string index = SealedSample();
  // Before the attribute's name, opcode and length: a flip in these hides it, and harms nothing.
  const std::size_t end = index.rfind(kDcpChecksums) - 5;
  for (std::size_t at = 0; at < end; at += test::kEveryByte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = index;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      EXPECT_FALSE(Read(damaged).ok()) << "byte " << at << ", bit " << bit << " of " << end;
    }
  }
}

TEST(DcpChecksums, AreThoseOfOneIndexAlone) {
  Metadata other = Sample();
  other.tensors[0].fqn = "v";
  const std::string index = SealedSample();
  std::string foreign = EncodeDcpMetadata(other).value();
  foreign.resize(foreign.size() - 3);
  foreign += index.substr(index.rfind(kDcpChecksums) - 5);
  EXPECT_TRUE(FailsWith(Read(foreign), StatusCode::kDataLoss, {"digest"}));
}

TEST(DcpChecksums, NeedAPickleThatEndsWithAttributes) {
  std::string other = "\x80\x02}.";
  EXPECT_TRUE(FailsWith(AppendDcpChecksums(Sample(), &other), StatusCode::kInvalidArgument,
                        {"does not end"}));
}

TEST(DcpChecksums, OfOtherSizesThanTheirIndexSaysAreMalformed) {
  Metadata metadata = Sample();
  metadata.files[0].block_crc32c.pop_back();
  std::string index = EncodeDcpMetadata(metadata).value();
  ASSERT_TRUE(IsOk(AppendDcpChecksums(metadata, &index)));
  EXPECT_TRUE(FailsWith(Read(index), StatusCode::kDataLoss, {"count of blocks"}));
  metadata = Sample();
  metadata.tensors[0].chunks.Listed()[0].payload = 990;
  index = EncodeDcpMetadata(metadata).value();
  ASSERT_TRUE(IsOk(AppendDcpChecksums(metadata, &index)));
  EXPECT_TRUE(FailsWith(Read(index), StatusCode::kDataLoss, {"outside its item"}));
}

}  // namespace
}  // namespace varve::checksums_test
