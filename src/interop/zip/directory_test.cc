#include "interop/zip/directory.h"

#include <gtest/gtest.h>

#include "support/archives.h"
#include "support/status_matchers.h"

namespace varve::directory_test {
namespace {

using test::Asked;
using test::CentralEntry;
using test::EndOfZip;
using test::FailsWith;
using test::FromHex;
using test::Golden;
using test::IsOk;
using test::Le;
using test::Watched;
using test::With;
using test::ZipOf;
using test::ZipPart;

Result<std::vector<ZipRecord>> DirectoryOf(std::string_view file) {
  return ReadZipDirectory(file.size(), Watched(file));
}

/// Returns the contents of all records by way of their local headers, or the first error.
Result<std::vector<std::string>> ContentsOf(std::string_view file) {
  VARVE_ASSIGN_OR_RETURN(const std::vector<ZipRecord> records, DirectoryOf(file));
  std::vector<std::string> contents;
  for (const ZipRecord& record : records) {
    VARVE_ASSIGN_OR_RETURN(const std::uint64_t begin,
                           FindRecordContent(record, file.size(), Watched(file)));
    VARVE_ASSIGN_OR_RETURN(std::string content, Watched(file)(begin, record.size));
    contents.push_back(std::move(content));
  }
  return contents;
}

std::vector<std::string> NamesOf(const std::vector<ZipRecord>& records) {
  std::vector<std::string> names;
  names.reserve(records.size());
  for (const ZipRecord& record : records) {
    names.push_back(record.name);
  }
  return names;
}

/// Two small records, `data/0` at byte 0.
std::string SmallArchive(bool zip64 = true) {
  return ZipOf({{.name = "data/0", .content = "0123456789", .crc32 = 7},
                {.name = "version", .content = "3\n", .crc32 = 8}},
               zip64);
}

// Written by Python's zipfile: a ZIP64 local header, an empty record, a comment.
std::string PythonsArchive() {
  return FromHex(
      "504b03042d00000000008318225886a61036ffffffffffffffff03001400612f"
      "78010010000500000000000000050000000000000068656c6c6f504b03041400"
      "000000008318225800000000000000000000000003000000612f79504b01022d"
      "032d00000000008318225886a610360500000005000000030000000000000000"
      "000000800100000000612f78504b010214031400000000008318225800000000"
      "000000000000000003000000000000000000000080013a000000612f79504b05"
      "060000000002000200620000005b0000000a006279207a697066696c65");
}

TEST(ZipDirectory, ListsWhatTorchWrote) {
  const std::string file = Golden("dcp/2.14.1/torch_save/bare_tensor.pt");
  Asked asked;
  const auto records = ReadZipDirectory(file.size(), Watched(file, &asked));
  ASSERT_TRUE(IsOk(records));
  EXPECT_EQ(NamesOf(*records),
            (std::vector<std::string>{"bare_tensor/data.pkl", "bare_tensor/.format_version",
                                      "bare_tensor/.storage_alignment", "bare_tensor/byteorder",
                                      "bare_tensor/data/0", "bare_tensor/version",
                                      "bare_tensor/.data/serialization_id"}));
  EXPECT_EQ((*records)[0].crc32, 0x844ca8cc);
  EXPECT_EQ(asked.reads, 1);
  const ZipRecord& data = (*records)[4];
  EXPECT_EQ(data.size, 30);
  const auto begin = FindRecordContent(data, file.size(), Watched(file));
  ASSERT_TRUE(IsOk(begin));
  EXPECT_EQ(*begin, 0x2c0);  // torch puts storages on multiples of 64.
  const auto contents = ContentsOf(file);
  ASSERT_TRUE(IsOk(contents));
  EXPECT_EQ((*contents)[3], "little");
  EXPECT_EQ((*contents)[5], "3\n");
}

TEST(ZipDirectory, ListsWhatPythonsZipfileWrote) {
  const std::string file = PythonsArchive();
  const auto records = DirectoryOf(file);
  ASSERT_TRUE(IsOk(records));
  EXPECT_EQ(NamesOf(*records), (std::vector<std::string>{"a/x", "a/y"}));
  const auto contents = ContentsOf(file);
  ASSERT_TRUE(IsOk(contents));
  EXPECT_EQ(*contents, (std::vector<std::string>{"hello", ""}));
}

TEST(ZipDirectory, MayBeEmpty) {
  const auto records = DirectoryOf(ZipOf({}));
  ASSERT_TRUE(IsOk(records));
  EXPECT_TRUE(records->empty());
}

TEST(ZipDirectory, TakesSizesAndPlacesFromTheZip64Field) {
  const std::string file = ZipOf({{.name = "a", .content = "xyz", .zip64 = true},
                                  {.name = "b", .content = "uv", .zip64 = true}});
  const auto contents = ContentsOf(file);
  ASSERT_TRUE(IsOk(contents));
  EXPECT_EQ(*contents, (std::vector<std::string>{"xyz", "uv"}));
}

TEST(ZipDirectory, IsFoundBeforeACommentOf64KiB) {
  const std::string file = ZipOf({{.name = "a", .content = "xyz"}}, true, std::string(0xFFFF, 'c'));
  EXPECT_TRUE(IsOk(ContentsOf(file)));
}

TEST(ZipDirectory, IsAskedForInSmallRangesHoweverLargeTheFile) {
  const std::string file = ZipOf({{.name = "a", .content = std::string(1 << 20, 'x')}});
  Asked asked;
  ASSERT_TRUE(IsOk(ReadZipDirectory(file.size(), Watched(file, &asked))));
  EXPECT_EQ(asked.reads, 1);
  EXPECT_LE(asked.largest, 1024);
}

TEST(ZipDirectory, AReaderThatFailsIsReported) {
  const auto failing = [](std::uint64_t, std::uint64_t) -> Result<std::string> {
    return Unavailable("disk on fire");
  };
  EXPECT_TRUE(FailsWith(ReadZipDirectory(500, failing), StatusCode::kUnavailable, {"fire"}));
  const auto short_of_one = [](std::uint64_t, std::uint64_t size) -> Result<std::string> {
    return std::string(size - 1, 'x');
  };
  EXPECT_TRUE(FailsWith(ReadZipDirectory(500, short_of_one), StatusCode::kDataLoss, {"499"}));
}

TEST(ZipDirectory, EveryTruncationIsRefused) {
  for (const std::string& file : {SmallArchive(), SmallArchive(false), PythonsArchive(),
                                  Golden("dcp/2.14.1/torch_save/bare_tensor.pt")}) {
    for (std::size_t size = 0; size < file.size(); ++size) {
      EXPECT_TRUE(FailsWith(DirectoryOf(file.substr(0, size)), StatusCode::kDataLoss)) << size;
    }
  }
}

TEST(ZipDirectory, NoFlippedByteLeadsOutsideTheFile) {
  for (const std::string& file : {SmallArchive(), SmallArchive(false), PythonsArchive(),
                                  Golden("dcp/2.14.1/torch_save/bare_tensor.pt")}) {
    for (std::size_t at = 0; at < file.size(); ++at) {
      for (const int flip : {0x01, 0x80, 0xFF}) {
        std::string damaged = file;
        damaged[at] = static_cast<char>(damaged[at] ^ flip);
        (void)ContentsOf(damaged);  // Watched fails the test.
      }
    }
  }
}

TEST(ZipDirectory, CompressedAndEncryptedRecordsAreRefusedByName) {
  EXPECT_TRUE(FailsWith(DirectoryOf(ZipOf({{.name = "bomb", .content = "x", .method = 8}})),
                        StatusCode::kUnimplemented, {"\"bomb\"", "compressed", "8"}));
  EXPECT_TRUE(FailsWith(DirectoryOf(ZipOf({{.name = "locked", .content = "x", .flags = 1}})),
                        StatusCode::kUnimplemented, {"\"locked\"", "encrypted"}));
}

TEST(ZipDirectory, TwoRecordsOfOneNameAreRefused) {
  const std::string file =
      ZipOf({{.name = "x", .content = "1"}, {.name = "y"}, {.name = "x", .content = "2"}});
  EXPECT_TRUE(FailsWith(DirectoryOf(file), StatusCode::kDataLoss, {"\"x\"", "twice"}));
}

TEST(ZipDirectory, OverlappingRecordsAreRefused) {
  // One body of 100 bytes, claimed by two entries (how the smallest zip bombs are made).
  const ZipPart body{.name = "a", .content = std::string(100, 'x')};
  std::string file = "PK\3\4" + std::string(26, '\0') + "a" + body.content;
  const std::uint64_t begin = file.size();
  const std::string directory =
      CentralEntry(body, 0) + CentralEntry({.name = "b", .content = "y"}, 60);
  file += directory + EndOfZip(2, begin, directory.size(), true);
  EXPECT_TRUE(FailsWith(DirectoryOf(file), StatusCode::kDataLoss, {"\"a\"", "overlaps", "\"b\""}));
}

TEST(ZipDirectory, ARecordThatReachesTheDirectoryIsRefused) {
  std::string file = "PK\3\4" + std::string(26, '\0') + "a12345";
  const std::string directory = CentralEntry({.name = "a", .content = "123456"}, 0);
  file += directory + EndOfZip(1, file.size(), directory.size(), true);
  EXPECT_TRUE(FailsWith(DirectoryOf(file), StatusCode::kDataLoss, {"overlaps the directory"}));
}

TEST(ZipDirectory, SizesAndPlacesBeyondTheFileAreRefused) {
  const std::string file = ZipOf({{.name = "a", .content = "xyz", .zip64 = true}});
  const std::size_t field = file.find(Le(1, 2) + Le(24, 2)) + 4;
  ASSERT_LT(field, file.size());
  for (const std::uint64_t large :
       {std::uint64_t{1} << 63, ~std::uint64_t{0}, std::uint64_t{1} << 40, std::uint64_t{100}}) {
    // Both sizes alike, or they would be refused for differing.
    const std::string sizes = With(With(file, field, Le(large, 8)), field + 8, Le(large, 8));
    EXPECT_TRUE(FailsWith(DirectoryOf(sizes), StatusCode::kDataLoss, {"overlaps"})) << large;
    EXPECT_TRUE(FailsWith(DirectoryOf(With(file, field + 16, Le(large, 8))), StatusCode::kDataLoss,
                          {"overlaps"}))
        << large;
  }
  EXPECT_TRUE(FailsWith(DirectoryOf(With(file, field, Le(4, 8))), StatusCode::kDataLoss,
                        {"4 bytes", "in 3"}));
}

TEST(ZipDirectory, AZip64FieldThatIsMissingOrTooShortIsRefused) {
  const std::string file = ZipOf({{.name = "a", .content = "xyz", .zip64 = true}});
  const std::size_t field = file.find(Le(1, 2) + Le(24, 2));
  EXPECT_TRUE(FailsWith(DirectoryOf(With(file, field, Le(2, 2))), StatusCode::kDataLoss,
                        {"\"a\"", "lacks the ZIP64 field"}));
  EXPECT_TRUE(FailsWith(DirectoryOf(With(file, field + 2, Le(20, 2))), StatusCode::kDataLoss,
                        {"\"a\"", "too short"}));
  EXPECT_TRUE(FailsWith(DirectoryOf(With(file, field + 2, Le(99, 2))), StatusCode::kDataLoss,
                        {"\"a\"", "lacks the ZIP64 field"}));
}

TEST(ZipDirectory, EndRecordsThatLieAreRefused) {
  const std::string file = SmallArchive();
  const std::size_t end = file.size() - 22;
  const std::size_t locator = end - 20;
  const std::size_t zip64 = locator - 56;
  const auto refused = [&](std::size_t at, const std::string& value, std::string_view phrase) {
    return FailsWith(DirectoryOf(With(file, at, value)), StatusCode::kDataLoss, {phrase});
  };
  EXPECT_TRUE(refused(end + 10 - 2, Le(3, 2) + Le(3, 2), "disagree"));
  EXPECT_TRUE(refused(end + 12, Le(1, 4), "disagree"));
  EXPECT_TRUE(refused(end + 16, Le(1, 4), "disagree"));
  EXPECT_TRUE(refused(zip64 + 4, Le(43, 8), "no ZIP64 end record"));
  EXPECT_TRUE(refused(zip64 + 40, Le(std::uint64_t{1} << 63, 8), "disagree"));
  EXPECT_TRUE(refused(locator + 8, Le(~std::uint64_t{0}, 8), "is said to be at byte"));
  EXPECT_TRUE(refused(locator + 8, Le(locator - 1, 8), "is said to be at byte"));
  EXPECT_TRUE(refused(locator + 8, Le(0, 8), "no ZIP64 end record"));

  // The same where the small end record leaves all to the large one.
  const std::string full = With(file, end + 8, std::string(12, '\xFF'));
  ASSERT_TRUE(IsOk(ContentsOf(full)));
  for (const std::uint64_t large : {std::uint64_t{1} << 63, ~std::uint64_t{0}, file.size()}) {
    EXPECT_TRUE(FailsWith(DirectoryOf(With(full, zip64 + 40, Le(large, 8))), StatusCode::kDataLoss,
                          {"the directory is said"}));
    EXPECT_TRUE(FailsWith(DirectoryOf(With(full, zip64 + 48, Le(large, 8))), StatusCode::kDataLoss,
                          {"the directory is said"}));
    EXPECT_TRUE(FailsWith(DirectoryOf(With(full, zip64 + 24, Le(large, 8) + Le(large, 8))),
                          StatusCode::kDataLoss, {"records in a directory of"}));
  }
}

TEST(ZipDirectory, ADirectoryLongerOrShorterThanItsRecordsIsRefused) {
  const std::string file = SmallArchive(false);
  const std::size_t end = file.size() - 22;
  EXPECT_TRUE(FailsWith(DirectoryOf(With(file, end + 8, Le(1, 2) + Le(1, 2))),
                        StatusCode::kDataLoss, {"belong to no record"}));
  // Two entries fit by size, but the names leave no room for the second.
  const std::string directory = CentralEntry({.name = std::string(50, 'n')}, 0);
  const std::string short_of_one =
      std::string(80, '\0') + directory + EndOfZip(2, 80, directory.size(), true);
  EXPECT_TRUE(FailsWith(DirectoryOf(short_of_one), StatusCode::kDataLoss,
                        {"ends or breaks off within its records"}));
}

TEST(ZipDirectory, BytesBetweenItAndTheEndRecordsAreRefused) {
  const std::string file = SmallArchive(false);
  EXPECT_TRUE(FailsWith(DirectoryOf(std::string(file).insert(file.size() - 22, "hide")),
                        StatusCode::kDataLoss, {"does not end where the end records begin"}));
}

TEST(ZipDirectory, ArchivesInSeveralFilesAreRefused) {
  const std::string file = SmallArchive(false);
  EXPECT_TRUE(FailsWith(DirectoryOf(With(file, file.size() - 18, Le(1, 2))),
                        StatusCode::kUnimplemented, {"several files"}));
}

TEST(ZipRecordContent, IsFoundBehindPadding) {
  const std::string padding = "FB" + Le(300, 2) + std::string(300, 'Z');
  const std::string file = ZipOf({{.name = "a", .content = "xyz", .local_extra = padding}});
  const auto contents = ContentsOf(file);
  ASSERT_TRUE(IsOk(contents));
  EXPECT_EQ((*contents)[0], "xyz");
}

TEST(ZipRecordContent, PaddingThatReachesWhatFollowsIsRefused) {
  const std::string file = SmallArchive();
  EXPECT_TRUE(FailsWith(ContentsOf(With(file, 28, Le(1, 2))), StatusCode::kDataLoss,
                        {"\"data/0\"", "something else begins"}));
  EXPECT_TRUE(FailsWith(ContentsOf(With(file, 28, Le(0xFFFF, 2))), StatusCode::kDataLoss));
}

TEST(ZipRecordContent, AHeaderThatDisagreesWithTheDirectoryIsRefused) {
  const std::string file = SmallArchive();
  EXPECT_TRUE(FailsWith(ContentsOf(With(file, 30, "Data/0")), StatusCode::kDataLoss,
                        {"no header of its own"}));
  EXPECT_TRUE(
      FailsWith(ContentsOf(With(file, 0, "PX")), StatusCode::kDataLoss, {"no header of its own"}));
  EXPECT_TRUE(FailsWith(ContentsOf(With(file, 18, Le(9, 4))), StatusCode::kDataLoss, {"disagree"}));
  EXPECT_TRUE(FailsWith(ContentsOf(With(file, 22, Le(0, 4))), StatusCode::kDataLoss, {"disagree"}));
  EXPECT_TRUE(FailsWith(ContentsOf(With(file, 14, Le(6, 4))), StatusCode::kDataLoss, {"disagree"}));
  EXPECT_TRUE(
      FailsWith(ContentsOf(With(file, 8, Le(8, 2))), StatusCode::kUnimplemented, {"compressed"}));
}

TEST(ZipRecordContent, SizesAndChecksumMayFollowTheContent) {
  const std::string file = SmallArchive();
  const std::string zeros = With(file, 14, std::string(12, '\0'));
  EXPECT_TRUE(FailsWith(ContentsOf(zeros), StatusCode::kDataLoss, {"disagree"}));
  EXPECT_TRUE(IsOk(ContentsOf(With(zeros, 6, Le(8, 2)))));
  EXPECT_TRUE(IsOk(ContentsOf(With(file, 18, std::string(8, '\xFF')))));  // ZIP64.
}

}  // namespace
}  // namespace varve::directory_test
