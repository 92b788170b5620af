#include "pipeline/record_sums.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/checksum.h"
#include "pipeline/file_reader.h"
#include "support/fake_file.h"
#include "support/random.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "tensor/box.h"

namespace varve::record_sums_test {
namespace {

using test::ChosenWayFile;
using test::FailsWith;
using test::IsOk;
using test::Random;

std::string NameOf(std::uint32_t owner) { return "tensor " + std::to_string(owner); }

/// A file of several read units with records of many sizes, some one behind the other and some with
/// gaps between them.
class RecordSumsTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    content_ = random_.Bytes(std::uint64_t{20} << 20);
    std::uint64_t at = 3;
    for (const std::uint64_t size : {1ULL, 100ULL, 4096ULL, 70'001ULL, 9ULL << 20, 5ULL << 20}) {
      for (int i = 0; i < 2; ++i) {
        const std::uint64_t begin = at + (i == 0 ? 0 : 61);
        if (begin + size > content_.size()) {
          continue;
        }
        const std::string_view bytes = std::string_view(content_).substr(begin, size);
        records_.push_back({begin, begin + size, Crc32ZipExtend(0, AsByteSpan(bytes)),
                            static_cast<std::uint32_t>(records_.size())});
        at = begin + size;
      }
    }
    Write();
  }

  void Write() const { std::ofstream(path_, std::ios::binary | std::ios::trunc) << content_; }

  /// Reads bytes [begin, end) as one target.
  ReadOutcome ReadRange(std::uint64_t begin, std::uint64_t end) {
    auto opened = PosixStorage().OpenForRead(path_);
    EXPECT_TRUE(IsOk(opened));
    ChosenWayFile file(std::move(*opened), GetParam());
    memory_.assign(end - begin, '\0');
    const Box box{{0}, {end - begin}};
    FileReads reads{&file, path_, {0, content_.size(), std::uint64_t{256} << 10}, {}, {}, records_};
    reads.targets.push_back(
        {begin, Region(box, {reinterpret_cast<std::byte*>(memory_.data()), box, {1}, 1}, box), 0});
    return ReadFiles({&reads, 1}, static_cast<std::uint32_t>(records_.size()), BufferPool::Shared(),
                     {.owner_name = NameOf});
  }

  Random random_{7};
  test::TempDir dir_;
  std::string path_ = dir_.path() + "/file";
  std::string content_;
  std::string memory_;
  std::vector<RecordSum> records_;
};

TEST_P(RecordSumsTest, IntactRecordsReadWithoutAWord) {
  ASSERT_GE(records_.size(), 9U);
  const ReadOutcome outcome = ReadRange(0, content_.size());
  EXPECT_TRUE(IsOk(outcome.status));
  EXPECT_EQ(memory_, content_);
}

TEST_P(RecordSumsTest, AFlippedBitInAnyRecordIsFoundAndItsOwnerNamed) {
  const std::string intact = content_;
  for (const RecordSum& record : records_) {
    for (const std::uint64_t at : {record.begin, (record.begin + record.end) / 2, record.end - 1}) {
      content_ = intact;
      content_[at] = static_cast<char>(content_[at] ^ 0x20);
      Write();
      const ReadOutcome outcome = ReadRange(0, content_.size());
      EXPECT_TRUE(FailsWith(outcome.status, StatusCode::kDataLoss)) << at;
      EXPECT_NE(outcome.status.message().find(NameOf(record.owner)), std::string::npos)
          << outcome.status.ToString();
    }
  }
}

TEST_P(RecordSumsTest, ARecordThatIsReadInPartIsNotJudged) {
  const RecordSum& large = records_[8];
  ASSERT_GT(large.end - large.begin, std::uint64_t{8} << 20);
  content_[large.begin] = static_cast<char>(content_[large.begin] ^ 1);
  Write();
  const ReadOutcome outcome = ReadRange(large.begin + (std::uint64_t{1} << 20), large.end);
  EXPECT_TRUE(IsOk(outcome.status));
}

TEST_P(RecordSumsTest, TheSameRecordMayBeNamedTwice) {
  records_.push_back(records_[4]);
  EXPECT_TRUE(IsOk(ReadRange(0, content_.size()).status));
}

INSTANTIATE_TEST_SUITE_P(Ways, RecordSumsTest, testing::Bool(),
                         [](const auto& one) { return one.param ? "Cached" : "Uncached"; });

}  // namespace
}  // namespace varve::record_sums_test
