#include "interop/zip/writer.h"

#include <gtest/gtest.h>

#include "base/checksum.h"
#include "interop/zip/directory.h"
#include "support/archives.h"
#include "support/status_matchers.h"

namespace varve::writer_test {
namespace {

using test::IsOk;
using test::Watched;

std::uint32_t CrcOf(std::string_view content) { return Crc32ZipExtend(0, AsByteSpan(content)); }

/// A file of which some stretches are never written: they read as zeros.
class SparseFile {
 public:
  /// Continues at `begin`.
  void Put(std::uint64_t begin, std::string bytes) {
    size_ = begin + bytes.size();
    pieces_.emplace_back(begin, std::move(bytes));
  }
  [[nodiscard]] std::uint64_t size() const { return size_; }

  [[nodiscard]] RangeReader reader() const {
    return [this](std::uint64_t begin, std::uint64_t size) -> Result<std::string> {
      std::string out(size, '\0');
      for (const auto& [at, bytes] : pieces_) {
        for (std::uint64_t i = 0; i < bytes.size(); ++i) {
          if (at + i >= begin && at + i - begin < size) {
            out[at + i - begin] = bytes[i];
          }
        }
      }
      return out;
    };
  }

 private:
  std::vector<std::pair<std::uint64_t, std::string>> pieces_;
  std::uint64_t size_ = 0;
};

TEST(ZipWriter, ItsRecordsAreReadBack) {
  ZipWriter zip;
  Bytes file;
  zip.AddRecord("a/one", "first", 1, &file);
  zip.AddRecord("a/empty", "", 64, &file);
  zip.AddRecord("a/two", std::string(10'000, 'x'), 4096, &file);
  zip.Finish(&file);

  const auto records = ReadZipDirectory(file.size(), Watched(file));
  ASSERT_TRUE(IsOk(records));
  ASSERT_EQ(records->size(), 3U);
  const std::vector<std::pair<std::string, std::string>> expected{
      {"a/one", "first"}, {"a/empty", ""}, {"a/two", std::string(10'000, 'x')}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const ZipRecord& record = (*records)[i];
    EXPECT_EQ(record.name, expected[i].first);
    EXPECT_EQ(record.crc32, CrcOf(expected[i].second));
    const auto begin = FindRecordContent(record, file.size(), Watched(file));
    ASSERT_TRUE(IsOk(begin));
    EXPECT_EQ(file.substr(*begin, record.size), expected[i].second);
  }
}

TEST(ZipWriter, AChecksumMayStandBehindItsContent) {
  for (const std::uint64_t size : {std::uint64_t{5}, std::uint64_t{5} << 30}) {
    const std::string content = size == 5 ? "later" : "";
    ZipWriter zip;
    SparseFile file;
    Bytes head;
    zip.AddHeader({.name = "a", .bytes = size, .crc32 = 0xABCD, .descriptor = true}, &head);
    EXPECT_EQ(head.find("\xCD\xAB"), std::string::npos) << "nobody knows it yet";
    file.Put(0, head + content);
    Bytes tail = ZipDescriptor(0xABCD, size);
    EXPECT_EQ(tail.size(), size == 5 ? 16U : 24U);
    zip.AddRecord("b", "next", 1, &tail);
    zip.Finish(&tail);
    file.Put(head.size() + size, tail);

    const auto records = ReadZipDirectory(file.size(), file.reader());
    ASSERT_TRUE(IsOk(records));
    EXPECT_EQ((*records)[0].crc32, 0xABCDU);
    const auto first = FindRecordContent((*records)[0], file.size(), file.reader());
    ASSERT_TRUE(IsOk(first));
    EXPECT_EQ(*first, head.size());
    const auto second = FindRecordContent((*records)[1], file.size(), file.reader());
    ASSERT_TRUE(IsOk(second));
    EXPECT_EQ(*file.reader()(*second, 4), "next");
  }
}

TEST(ZipWriter, ContentsBeginWhereTheirAlignmentSays) {
  for (std::size_t name_bytes = 1; name_bytes < 140; ++name_bytes) {
    ZipWriter zip;
    Bytes file;
    const std::uint64_t filler =
        zip.AddHeader({.name = std::string(name_bytes, 'n'), .bytes = 3, .alignment = 64}, &file);
    EXPECT_EQ(file.size() % 64, 0U);
    EXPECT_EQ(file.substr(file.size() - filler), std::string(filler, 'Z'));
    EXPECT_NE(file[file.size() - filler - 1], 'Z');
    file += "abc";
    zip.Finish(&file);
    const auto records = ReadZipDirectory(file.size(), Watched(file));
    ASSERT_TRUE(IsOk(records));
    const auto begin = FindRecordContent((*records)[0], file.size(), Watched(file));
    ASSERT_TRUE(IsOk(begin));
    EXPECT_EQ(file.substr(*begin, 3), "abc");
  }
}

TEST(ZipWriter, SizesAndPlacesBeyond4GiBAreReadBack) {
  // Around the largest number that fits, which is itself the sign that it does not.
  for (const std::uint64_t size :
       {0xFFFFFFFEULL, 0xFFFFFFFFULL, 0x100000000ULL, 5ULL << 30, 1ULL << 50}) {
    ZipWriter zip;
    SparseFile file;
    Bytes head;
    zip.AddHeader({.name = "large", .bytes = size, .crc32 = 7, .alignment = 4096}, &head);
    const std::uint64_t content = head.size();
    EXPECT_EQ(content, 4096U);
    file.Put(0, head);
    Bytes tail;
    zip.AddRecord("small", "behind", 1, &tail);
    zip.AddHeader({.name = "another", .bytes = size}, &tail);
    file.Put(content + size, tail);
    Bytes end;
    zip.Finish(&end);
    file.Put(content + size + tail.size() + size, end);

    const auto records = ReadZipDirectory(file.size(), file.reader());
    ASSERT_TRUE(IsOk(records)) << size;
    ASSERT_EQ(records->size(), 3U);
    EXPECT_EQ((*records)[0].size, size);
    EXPECT_EQ((*records)[0].crc32, 7U);
    EXPECT_EQ((*records)[1].header_begin, content + size);
    EXPECT_EQ((*records)[2].size, size);
    const auto begin = FindRecordContent((*records)[0], file.size(), file.reader());
    ASSERT_TRUE(IsOk(begin));
    EXPECT_EQ(*begin, content);
    const auto small = FindRecordContent((*records)[1], file.size(), file.reader());
    ASSERT_TRUE(IsOk(small));
    EXPECT_EQ(*file.reader()(*small, 6), "behind");
    EXPECT_TRUE(IsOk(FindRecordContent((*records)[2], file.size(), file.reader())));
  }
}

TEST(ZipWriter, MoreRecordsThanTheEndRecordCanCountAreReadBack) {
  constexpr int kCount = 70'000;
  ZipWriter zip;
  Bytes file;
  for (int i = 0; i < kCount; ++i) {
    zip.AddRecord("data/" + std::to_string(i), "", 1, &file);
  }
  zip.Finish(&file);
  const auto records = ReadZipDirectory(file.size(), Watched(file));
  ASSERT_TRUE(IsOk(records));
  EXPECT_EQ(records->size(), std::size_t{kCount});
}

}  // namespace
}  // namespace varve::writer_test
