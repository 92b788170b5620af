#include "interop/safetensors/hf_checksums.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/checksum.h"
#include "support/status_matchers.h"

namespace varve::test::hf_checksums_test {
namespace {

const std::string kHeader = "a header";

HfChecksums Example() {
  return {4096,
          {{"a.safetensors", 5000, kHeader.size(), Crc32c(AsByteSpan(kHeader)), {1, 2}},
           {"b.safetensors", 8, kHeader.size(), Crc32c(AsByteSpan(kHeader)), {0xffffffff}}},
          {{"config.json", 3, 7}, {"tokenizer/vocab.json", 0, 0}}};
}

NamedFile File(const std::string& name, std::uint64_t size, const std::string& begin = kHeader) {
  return {name, size, [begin](std::uint64_t at, std::uint64_t bytes) -> Result<std::string> {
            return begin.substr(at, bytes);
          }};
}

Metadata Folder(const std::vector<NamedFile>& files) {
  Metadata metadata;
  for (const NamedFile& file : files) {
    metadata.files.push_back({.name = file.name, .size = file.size});
  }
  return metadata;
}

TEST(HfChecksums, AreReadBackAsWritten) {
  for (const HfChecksums& checksums : {Example(), HfChecksums{4096, {}, {}}}) {
    const auto back = DecodeHfChecksums(EncodeHfChecksums(checksums));
    ASSERT_TRUE(IsOk(back));
    EXPECT_EQ(*back, checksums);
  }
}

TEST(HfChecksums, WithOneFlippedBitAreRefused) {
  const std::string whole = EncodeHfChecksums(Example());
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      const auto decoded = DecodeHfChecksums(flipped);
      ASSERT_FALSE(decoded.ok()) << at << " " << bit;
    }
    EXPECT_FALSE(DecodeHfChecksums(whole.substr(0, at)).ok()) << at;
  }
}

TEST(HfChecksums, GiveTheFolderItsSums) {
  const std::vector<NamedFile> files{File("a.safetensors", 5000), File("b.safetensors", 8)};
  Metadata metadata = Folder(files);
  ASSERT_TRUE(IsOk(ApplyHfChecksums(Example(), files, &metadata)));
  EXPECT_EQ(metadata.block_bytes, 4096U);
  EXPECT_EQ(metadata.files[0].block_crc32c, (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(metadata.side_files, Example().side_files);
}

TEST(HfChecksums, OfAnotherSetOfFilesAreRefused) {
  const NamedFile a = File("a.safetensors", 5000);
  const NamedFile b = File("b.safetensors", 8);
  const std::vector<std::pair<std::vector<NamedFile>, std::string>> cases{
      {{a}, "b.safetensors"}, {{a, b, File("c.safetensors", 8)}, "c.safetensors"}};
  for (const auto& [files, named] : cases) {
    Metadata metadata = Folder(files);
    EXPECT_TRUE(FailsWith(ApplyHfChecksums(Example(), files, &metadata), StatusCode::kDataLoss,
                          {named, "another program", "remove model.varve-checksums.json"}));
  }
}

TEST(HfChecksums, OfAnotherHeaderOrSizeAreRefused) {
  for (const NamedFile& other : {File("b.safetensors", 9), File("b.safetensors", 8, "a headex"),
                                 File("b.safetensors", 8, "a head")}) {
    const std::vector<NamedFile> files{File("a.safetensors", 5000), other};
    Metadata metadata = Folder(files);
    EXPECT_TRUE(FailsWith(ApplyHfChecksums(Example(), files, &metadata), StatusCode::kDataLoss,
                          {"b.safetensors", "another program"}));
  }
}

}  // namespace
}  // namespace varve::test::hf_checksums_test
