#include "pipeline/file_writer.h"

#include <atomic>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/checksum.h"
#include "support/fake_file.h"
#include "support/random.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "tensor/box.h"

namespace varve {
namespace {

using test::FailsWith;
using test::IsOk;
using test::MemoryFile;
using test::Random;

constexpr std::uint64_t kHeader = 8192;

/// Segments with the memory behind them, and the bytes they should become.
struct Job {
  std::vector<std::unique_ptr<std::string>> memory;  // Addresses must not move.
  std::vector<FileSegment> segments;
  std::string image;
  std::vector<Hash128> contents;

  void AddLiteral(std::string bytes) {
    image += bytes;
    memory.push_back(std::make_unique<std::string>(std::move(bytes)));
    segments.push_back({memory.back()->size(), AsByteSpan(*memory.back()), std::nullopt});
  }

  /// A row-major chunk whose memory is transposed if `strided`.
  void AddTensor(const Dims& shape, std::uint64_t item, bool strided, Random* random) {
    const std::string bytes = random->Bytes(Volume(shape) * item);
    auto source = std::make_unique<std::string>(bytes);
    Strides strides = RowMajorStrides(shape);
    if (strided) {
      strides = {1, static_cast<std::int64_t>(shape[0])};
      for (std::uint64_t i = 0; i < shape[0]; ++i) {
        for (std::uint64_t j = 0; j < shape[1]; ++j) {
          source->replace((j * shape[0] + i) * item, item, bytes, (i * shape[1] + j) * item, item);
        }
      }
    }
    const Box box = WholeBox(shape);
    const StridedMemory from{reinterpret_cast<std::byte*>(source->data()), box, strides, item};
    memory.push_back(std::move(source));
    segments.push_back({bytes.size(), {}, Region(box, from, box)});
    image += bytes;
    contents.push_back(Xxh3(AsByteSpan(bytes)));
  }

  [[nodiscard]] std::vector<std::uint32_t> Crcs(std::uint64_t block_bytes) const {
    std::vector<std::uint32_t> crcs;
    for (std::uint64_t at = 0; at < image.size(); at += block_bytes) {
      crcs.push_back(Crc32c(AsByteSpan(std::string_view(image).substr(at, block_bytes))));
    }
    return crcs;
  }
};

Job MixedJob(Random* random) {
  Job job;
  job.AddTensor({3, 5}, 16, true, random);
  job.AddTensor({700, 1100}, 8, true, random);
  job.AddTensor({4'000'000}, 4, false, random);  // Crosses pool blocks.
  job.AddTensor({1}, 2, false, random);
  job.AddTensor({999, 77}, 1, true, random);
  job.AddLiteral("an encoded value");
  job.AddLiteral("");
  job.AddLiteral(random->Bytes(10'001));
  return job;
}

TEST(WriteSegments, WritesTheImageAndReturnsItsChecksums) {
  Random random(1);
  const Job job = MixedJob(&random);
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
  Job job;
  job.AddLiteral(random.Bytes(5000));
  MemoryFile file(true);
  ASSERT_TRUE(IsOk(WriteSegments(file, 0, job.segments, pool, {})));
  ASSERT_EQ(file.content.size(), 8192U);
  EXPECT_EQ(file.content.substr(5000), std::string(3192, '\0'));
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
  Job job;
  job.AddTensor({5 * kPoolBlockBytes - 100}, 1, false, &random);
  BufferPool pool(0);
  MemoryFile file;
  ASSERT_TRUE(IsOk(WriteSegments(file, 0, job.segments, pool, {.writes_in_flight = 8})));
  EXPECT_TRUE(file.content == job.image);
}

TEST(WriteSegments, StopsAtTheFirstErrorAndReturnsIt) {
  Random random(4);
  Job job;
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
  Job job;
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

TEST(WriteSegments, ReportsEveryByteAsProgress) {
  Random random(6);
  const Job job = MixedJob(&random);
  BufferPool pool(4 * kPoolBlockBytes);
  MemoryFile file(true);
  std::atomic<std::uint64_t> bytes{0};
  ASSERT_TRUE(IsOk(WriteSegments(file, 0, job.segments, pool,
                                 {.on_written = [&](std::uint64_t n) { bytes += n; }})));
  EXPECT_EQ(bytes, job.image.size());
}

TEST(WriteSegments, WritesToADisk) {
  Random random(7);
  const Job job = MixedJob(&random);
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
}  // namespace varve
