#include "format/commit_record.h"

#include <gtest/gtest.h>

#include "base/checksum.h"
#include "support/checkpoints.h"
#include "support/status_matchers.h"
#include "varve/metadata.h"

namespace varve::commit_record_test {
namespace {

using test::FailsWith;
using test::IsOk;

CommitRecord Sample() {
  return MakeCommitRecord(test::SampleMetadata(),
                          {.bytes = "the whole manifest", .crc32c = 0x1234});
}

TEST(CommitRecord, RoundTrips) {
  const CommitRecord record = Sample();
  const auto decoded = DecodeCommitRecord(EncodeCommitRecord(record));
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(*decoded, record);
}

TEST(CommitRecord, TellsTheTotalsOfTheMetadata) {
  const Metadata metadata = test::SampleMetadata();
  const CommitRecord record = Sample();
  EXPECT_EQ(record.format_version, kFormatVersion);
  EXPECT_EQ(record.save_id, metadata.save_id);
  EXPECT_EQ(record.world_size, 2U);
  EXPECT_EQ(record.file_count, 2U);
  EXPECT_EQ(record.tensor_count, 3U);
  EXPECT_EQ(record.object_count, 3U);
  EXPECT_EQ(record.total_bytes, metadata.files[0].size + metadata.files[1].size);
  EXPECT_EQ(record.manifest_bytes, 18U);
  EXPECT_EQ(record.frame_bytes, 18U);
  EXPECT_EQ(record.manifest_crc32c, 0x1234U);
}

TEST(CommitRecord, RejectsEverySingleBitFlip) {
  Bytes bytes = EncodeCommitRecord(Sample());
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_TRUE(FailsWith(DecodeCommitRecord(bytes), StatusCode::kDataLoss)) << "bit " << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
  }
}

TEST(CommitRecord, RejectsEveryTruncationAndExtension) {
  const Bytes bytes = EncodeCommitRecord(Sample());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_TRUE(FailsWith(DecodeCommitRecord(std::string_view(bytes).substr(0, size)),
                          StatusCode::kDataLoss))
        << size;
  }
  EXPECT_TRUE(FailsWith(DecodeCommitRecord(bytes + "\n"), StatusCode::kDataLoss));
  EXPECT_TRUE(FailsWith(DecodeCommitRecord(Bytes(70'000, ' ')), StatusCode::kDataLoss, {"64 KiB"}));
}

TEST(CommitRecord, RefusesANewerVersionWithAMessage) {
  CommitRecord record = Sample();
  record.format_version = kFormatVersion + 1;
  EXPECT_TRUE(FailsWith(DecodeCommitRecord(EncodeCommitRecord(record)), StatusCode::kUnimplemented,
                        {"format version 6", "use a newer Varve"}));
}

TEST(CommitRecord, VersionFourAloneNamesAFrameWhichIsNoLargerThanItsManifest) {
  CommitRecord record = Sample();
  for (const std::uint32_t version : {1U, kFormatVersion}) {
    record.format_version = version;
    const Bytes encoded = EncodeCommitRecord(record);
    EXPECT_EQ(encoded.find("frame_bytes"), Bytes::npos);
    EXPECT_EQ(DecodeCommitRecord(encoded).value().frame_bytes, record.manifest_bytes);
  }
  record.format_version = 4;
  record.frame_bytes = record.manifest_bytes + 1;
  EXPECT_TRUE(FailsWith(DecodeCommitRecord(EncodeCommitRecord(record)), StatusCode::kDataLoss,
                        {"frame_bytes"}));
}

TEST(CommitRecord, KeepsAnyWriterName) {
  CommitRecord record = Sample();
  record.writer = "quote \" backslash \\ newline \n \"crc32c\": \"00000000";
  const auto decoded = DecodeCommitRecord(EncodeCommitRecord(record));
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(decoded->writer, record.writer);
}

}  // namespace
}  // namespace varve::commit_record_test
