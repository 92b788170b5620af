#include "pipeline/file_writer.h"

#include <atomic>
#include <chrono>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/checksum.h"
#include "support/fake_file.h"
#include "support/file_job.h"
#include "support/random.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"

namespace varve::file_writer_test {
namespace {

using test::FailsWith;
using test::FileJob;
using test::IsOk;
using test::MemoryFile;
using test::MixedFileJob;
using test::Random;

constexpr std::uint64_t kHeader = 8192;

TEST(WriteSegments, WritesTheImageAndReturnsItsChecksums) {
  Random random(1);
  const FileJob job = MixedFileJob(&random);
  BufferPool pool(8 * kPoolBlockBytes);
  for (const bool direct : {false, true}) {
    for (const std::uint64_t block_bytes : {std::uint64_t{4096}, std::uint64_t{1} << 20}) {
      MemoryFile file(direct);
      const auto written =
          WriteSegments(file, kHeader, job.segments, pool, {.block_bytes = block_bytes});
      ASSERT_TRUE(IsOk(written));
      EXPECT_EQ(written->block_crc32c, job.Crcs(block_bytes));
      EXPECT_EQ(written->contents, job.contents);
      ASSERT_TRUE(IsOk(file.Sync(kHeader + job.image.size())));
      EXPECT_TRUE(std::string_view(file.content).substr(kHeader) == job.image);
      EXPECT_EQ(file.content.substr(0, kHeader), std::string(kHeader, '\x5A')) << "untouched";
    }
  }
}

TEST(WriteSegments, LeavesZeroesInTheLastPage) {
  Random random(2);
  BufferPool pool(4 * kPoolBlockBytes);
  std::memset(pool.Acquire()->data(), 0x77, kPoolBlockBytes);  // Used before.
  FileJob job;
  job.AddLiteral(random.Bytes(5000));
  MemoryFile file(true);
  ASSERT_TRUE(IsOk(WriteSegments(file, 0, job.segments, pool, {})));
  ASSERT_EQ(file.content.size(), 8192U);
  EXPECT_EQ(file.content.substr(5000), std::string(3192, '\0'));
}

TEST(WriteSegments, WritesTheSameWithoutSums) {
  Random random(4);
  BufferPool pool(4 * kPoolBlockBytes);
  FileJob job;
  job.AddLiteral(random.Bytes(5000));
  job.AddTensor({1000, 750}, 4, true, &random);
  job.AddTensor({0, 5}, 4, false, &random);
  MemoryFile with;
  MemoryFile without;
  ASSERT_TRUE(IsOk(WriteSegments(with, 0, job.segments, pool, {})));
  const auto written = WriteSegments(without, 0, job.segments, pool, {.sums = false});
  ASSERT_TRUE(IsOk(written));
  EXPECT_TRUE(written->block_crc32c.empty() && written->contents.empty());
  EXPECT_EQ(without.content, with.content);
}

TEST(WriteSegments, WritesNothingForNoSegments) {
  BufferPool pool(2 * kPoolBlockBytes);
  MemoryFile file;
  const auto written = WriteSegments(file, 0, {}, pool, {});
  ASSERT_TRUE(IsOk(written));
  EXPECT_TRUE(written->block_crc32c.empty() && written->contents.empty());
  EXPECT_EQ(file.writes, 0U);
}

// Two pool blocks for data of five: filling must wait for writing, and not for ever.
TEST(WriteSegments, LivesWithinTheSmallestPool) {
  Random random(3);
  FileJob job;
  job.AddTensor({5 * kPoolBlockBytes - 100}, 1, false, &random);
  BufferPool pool(0);
  MemoryFile file;
  ASSERT_TRUE(IsOk(WriteSegments(file, 0, job.segments, pool, {.writes_in_flight = 8})));
  EXPECT_TRUE(file.content == job.image);
}

TEST(WriteSegments, StopsAtTheFirstErrorAndReturnsIt) {
  Random random(4);
  FileJob job;
  job.AddTensor({6 * kPoolBlockBytes}, 1, false, &random);
  BufferPool pool(3 * kPoolBlockBytes);
  for (const std::uint64_t good_writes : {0, 1, 3, 5}) {
    MemoryFile file;
    file.fail_from = good_writes;
    EXPECT_TRUE(FailsWith(WriteSegments(file, 0, job.segments, pool, {.writes_in_flight = 2}),
                          StatusCode::kOutOfSpace, {"refused"}));
    EXPECT_LE(file.writes, good_writes + 2) << "at most the writes already under way";
  }
  MemoryFile file;
  EXPECT_TRUE(IsOk(WriteSegments(file, 0, job.segments, pool, {}))) << "all blocks came back";
}

TEST(WriteSegments, StopsOnRequest) {
  Random random(5);
  FileJob job;
  job.AddTensor({4 * kPoolBlockBytes}, 1, false, &random);
  BufferPool pool(3 * kPoolBlockBytes);
  MemoryFile file;
  std::stop_source stop;
  const auto written = WriteSegments(file, 0, job.segments, pool,
                                     {.writes_in_flight = 1,
                                      .on_written = [&](std::uint64_t) { stop.request_stop(); },
                                      .stop = stop.get_token()});
  EXPECT_TRUE(FailsWith(written, StatusCode::kCancelled));
  EXPECT_EQ(file.writes, 1U);
}

// Claims a rate, not a duration: the writes are spread, none is lost.
TEST(WriteSegments, KeepsToItsBandwidth) {
  Random random(8);
  FileJob job;
  job.AddTensor({3 * kPoolBlockBytes}, 1, false, &random);
  BufferPool pool(4 * kPoolBlockBytes);
  MemoryFile file;
  const auto start = std::chrono::steady_clock::now();
  constexpr std::uint64_t kRate = std::uint64_t{80} << 20;
  ASSERT_TRUE(IsOk(WriteSegments(file, 0, job.segments, pool, {.max_bytes_per_second = kRate})));
  // Two waits of a tenth of a second each: before the second and before the third block.
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(200));
  EXPECT_TRUE(file.content == job.image);
}

TEST(WriteSegments, ReportsEveryByteAsProgress) {
  Random random(6);
  const FileJob job = MixedFileJob(&random);
  BufferPool pool(4 * kPoolBlockBytes);
  MemoryFile file(true);
  std::atomic<std::uint64_t> bytes{0};
  ASSERT_TRUE(IsOk(WriteSegments(file, 0, job.segments, pool,
                                 {.on_written = [&](std::uint64_t n) { bytes += n; }})));
  EXPECT_EQ(bytes, job.image.size());
}

TEST(WriteSegments, WritesToADisk) {
  Random random(7);
  const FileJob job = MixedFileJob(&random);
  BufferPool pool(4 * kPoolBlockBytes);
  const test::TempDir dir;
  for (const bool direct : {false, true}) {
    const std::string path = dir / (direct ? "direct" : "buffered");
    auto file = PosixStorage().OpenForWrite(path, {.size = job.image.size(), .direct = direct});
    ASSERT_TRUE(IsOk(file));
    ASSERT_TRUE(IsOk(WriteSegments(**file, 0, job.segments, pool, {})));
    ASSERT_TRUE(IsOk((*file)->Sync(job.image.size())));
    const auto content = ReadWholeFile(PosixStorage(), path, 1U << 30);
    ASSERT_TRUE(IsOk(content));
    EXPECT_TRUE(*content == job.image);
  }
}

}  // namespace
}  // namespace varve::file_writer_test
