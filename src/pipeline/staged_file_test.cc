#include "pipeline/staged_file.h"

#include <algorithm>
#include <thread>

#include <gtest/gtest.h>

#include "support/fake_file.h"
#include "support/file_job.h"
#include "support/no_huge_pages.h"
#include "support/random.h"
#include "support/status_matchers.h"

namespace varve::staged_file_test {
namespace {

using test::FailsWith;
using test::FileJob;
using test::IsOk;
using test::MemoryFile;
using test::MixedFileJob;
using test::Random;

constexpr std::uint64_t kHeader = 8192;
constexpr std::uint64_t kSum = std::uint64_t{1} << 20;

StagedFile Stage(const FileJob& job, StagingPool* pool, std::uint64_t sum_bytes = kSum) {
  auto memory = pool->Reserve(StagedFile::BlocksFor(job.segments, sum_bytes), {});
  EXPECT_TRUE(IsOk(memory));
  return {job.segments, sum_bytes, std::move(*memory)};
}

std::unique_ptr<StagingPool> PoolOf(std::size_t blocks) {
  return std::move(*StagingPool::Make(blocks * kPoolBlockBytes));
}

TEST(StagedFile, WritesWhatWasThereWhenItWasStaged) {
  Random random(1);
  const auto pool = PoolOf(16);
  for (const bool direct : {false, true}) {
    // The last does not divide a pool block.
    for (const std::uint64_t sum_bytes : {std::uint64_t{4096}, kSum, std::uint64_t{3} << 20}) {
      const FileJob job = MixedFileJob(&random);
      StagedFile staged = Stage(job, pool.get(), sum_bytes);
      ASSERT_FALSE(staged.in_waves());
      ASSERT_TRUE(IsOk(staged.Fill(3, {})));
      for (const auto& source : job.memory) {
        std::fill(source->begin(), source->end(), '\x11');  // Training goes on.
      }
      MemoryFile file(direct);
      const auto written = staged.WriteTo(file, kHeader, {.block_bytes = sum_bytes});
      ASSERT_TRUE(IsOk(written));
      EXPECT_EQ(written->block_crc32c, job.Crcs(sum_bytes));
      EXPECT_EQ(written->contents, job.contents);
      ASSERT_TRUE(IsOk(file.Sync(kHeader + job.image.size())));
      EXPECT_TRUE(std::string_view(file.content).substr(kHeader) == job.image);
    }
  }
}

TEST(StagedFile, TellsOthersWhichBlocksAreInSmallPages) {
  Random random(7);
  const FileJob job = MixedFileJob(&random);
  const test::NoHugePages none;
  if (!none.done()) {
    GTEST_SKIP() << "huge pages cannot be refused to this process: prctl is not allowed to";
  }
  const auto pool = std::move(*StagingPool::Make(16 * kPoolBlockBytes, /*shared=*/true));
  StagedFile staged = Stage(job, pool.get());
  ASSERT_TRUE(IsOk(staged.Fill(3, {})));
  StagedImage image = staged.Describe();
  ASSERT_GT(image.blocks.size(), 1U);
  EXPECT_EQ(image.in_small_pages.size(), image.blocks.size());
  image.in_small_pages = {1};
  const auto decoded = DecodeStagedImage(EncodeStagedImage(image), pool->block_count());
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(*decoded, image);
  image.in_small_pages = {image.blocks.size()};
  EXPECT_TRUE(FailsWith(CheckStagedImage(image, pool->block_count()), StatusCode::kDataLoss));
}

TEST(StagedFile, OfMemoryThatItsOwnerUsesAgainIsNoFile) {
  Random random(8);
  const FileJob job = MixedFileJob(&random);
  const auto pool = PoolOf(16);
  StagedFile staged = Stage(job, pool.get());
  ASSERT_TRUE(IsOk(staged.Fill(3, {})));
  StagedImage image = staged.Describe();
  image.in_small_pages = {1};  // Copied on the way, the others not.
  const StagingPool::Reservation memory = staged.TakeMemory();
  std::vector<const std::byte*> blocks;
  for (const std::uint64_t number : image.blocks) {
    blocks.push_back(
        *std::find_if(memory.blocks().begin(), memory.blocks().end(),
                      [&](const std::byte* block) { return memory.NumberOf(block) == number; }));
  }
  for (const bool intact : {true, false}) {
    StagedFile borrowed(image, blocks, BufferPool::Shared(), [intact] { return intact; });
    MemoryFile file(/*direct=*/true);
    const auto written = borrowed.WriteTo(file, kHeader, {.block_bytes = kSum});
    if (intact) {
      ASSERT_TRUE(IsOk(written));
      EXPECT_EQ(written->contents, job.contents);
    } else {
      EXPECT_TRUE(FailsWith(written, StatusCode::kDataLoss, {"uses the memory again"}));
    }
  }
}

TEST(StagedFile, LeavesZeroesInTheLastPage) {
  Random random(2);
  const auto pool = PoolOf(2);
  std::memset(pool->Reserve(1, {})->blocks()[0], 0x77, kPoolBlockBytes);  // Used before.
  FileJob job;
  job.AddLiteral(random.Bytes(5000));
  StagedFile staged = Stage(job, pool.get());
  ASSERT_TRUE(IsOk(staged.Fill(1, {})));
  MemoryFile file(true);
  ASSERT_TRUE(IsOk(staged.WriteTo(file, 0, {})));
  ASSERT_EQ(file.content.size(), 8192U);
  EXPECT_EQ(file.content.substr(5000), std::string(3192, '\0'));
}

TEST(StagedFile, OfNothingIsNothing) {
  Random random(9);
  const auto pool = PoolOf(2);
  FileJob job;
  job.AddTensor({0}, 4, false, &random);
  StagedFile staged = Stage(job, pool.get());
  ASSERT_TRUE(IsOk(staged.Fill(2, {})));
  MemoryFile file;
  const auto written = staged.WriteTo(file, 0, {});
  ASSERT_TRUE(IsOk(written));
  EXPECT_TRUE(written->block_crc32c.empty());
  EXPECT_EQ(written->contents, job.contents);
  EXPECT_EQ(file.writes, 0U);
}

TEST(StagedFile, GoesThroughLessMemoryThanItHasBytesInWaves) {
  Random random(3);
  FileJob job;
  job.AddTensor({7 * kPoolBlockBytes - 100}, 1, false, &random);
  job.AddLiteral("a value");
  const auto pool = PoolOf(2);
  StagedFile staged = Stage(job, pool.get());
  ASSERT_TRUE(staged.in_waves());
  Status filled;
  std::jthread filling([&] { filled = staged.Fill(4, {}); });
  MemoryFile file;
  const auto written = staged.WriteTo(file, 0, {});
  filling.join();
  ASSERT_TRUE(IsOk(filled));
  ASSERT_TRUE(IsOk(written));
  EXPECT_EQ(written->block_crc32c, job.Crcs(kSum));
  EXPECT_TRUE(file.content == job.image);
}

TEST(StagedFile, CanBeWrittenAgainAfterAFailure) {
  Random random(4);
  FileJob job;
  job.AddTensor({3 * kPoolBlockBytes}, 1, false, &random);
  const auto pool = PoolOf(4);
  StagedFile staged = Stage(job, pool.get());
  ASSERT_TRUE(IsOk(staged.Fill(2, {})));
  MemoryFile full;
  full.fail_from = 1;
  EXPECT_TRUE(FailsWith(staged.WriteTo(full, 0, {}), StatusCode::kOutOfSpace, {"refused"}));
  MemoryFile file;
  ASSERT_TRUE(IsOk(staged.WriteTo(file, 0, {})));
  EXPECT_TRUE(file.content == job.image);
}

TEST(StagedFile, InWavesAFailedWriteEndsTheStaging) {
  Random random(5);
  FileJob job;
  job.AddTensor({6 * kPoolBlockBytes}, 1, false, &random);
  const auto pool = PoolOf(2);
  StagedFile staged = Stage(job, pool.get());
  Status filled;
  std::jthread filling([&] { filled = staged.Fill(2, {}); });
  MemoryFile full;
  full.fail_from = 1;
  EXPECT_TRUE(FailsWith(staged.WriteTo(full, 0, {}), StatusCode::kOutOfSpace, {"refused"}));
  filling.join();
  EXPECT_TRUE(FailsWith(filled, StatusCode::kOutOfSpace, {"refused"}));
}

/// Its first write succeeds; the others take a while to fail.
class SlowToFail final : public WritableFile {
 public:
  Status WriteAt(std::uint64_t /*offset*/, std::span<const std::byte> /*data*/) override {
    if (first_.exchange(false)) {
      return Status::Ok();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return {StatusCode::kOutOfSpace, "refused"};
  }
  Status Sync(std::uint64_t /*size*/) override { return Status::Ok(); }
  [[nodiscard]] bool direct() const override { return false; }

 private:
  std::atomic<bool> first_{true};
};

TEST(StagedFile, InWavesAWriteThatFailsWhileTheNextBlockIsWaitedForEndsTheWait) {
  Random random(5);
  FileJob job;
  job.AddTensor({6 * kPoolBlockBytes}, 1, false, &random);
  const auto pool = PoolOf(2);
  StagedFile staged = Stage(job, pool.get());
  const std::jthread filling([&] { (void)staged.Fill(2, {}); });
  SlowToFail full;  // Fails when it has both blocks of memory, and no thread pushes a third.
  EXPECT_TRUE(FailsWith(staged.WriteTo(full, 0, {}), StatusCode::kOutOfSpace, {"refused"}));
}

TEST(StagedFile, WhatIsNeverStagedIsAnErrorAndNotAWait) {
  FileJob job;
  Random random(6);
  job.AddTensor({100}, 1, false, &random);
  const auto pool = PoolOf(2);
  StagedFile staged = Stage(job, pool.get());
  staged.Abandon(Unavailable("the trainer is gone"));
  MemoryFile file;
  EXPECT_TRUE(FailsWith(staged.WriteTo(file, 0, {}), StatusCode::kUnavailable, {"trainer"}));
}

TEST(StagedFile, StopsOnRequest) {
  FileJob job;
  Random random(7);
  job.AddTensor({100}, 1, false, &random);
  const auto pool = PoolOf(2);
  std::stop_source stop;
  stop.request_stop();
  StagedFile staged = Stage(job, pool.get());
  EXPECT_TRUE(FailsWith(staged.Fill(2, stop.get_token()), StatusCode::kCancelled));
  StagedFile waiting = Stage(job, pool.get());
  MemoryFile file;
  EXPECT_TRUE(
      FailsWith(waiting.WriteTo(file, 0, {.stop = stop.get_token()}), StatusCode::kCancelled));
}

// Elsewhere a save in memory has overwritten the buffer of the one that was being written.
TEST(StagedFile, BytesThatChangeBehindItsBackAreFoundBeforeTheyAreWritten) {
  Random random(8);
  FileJob job;
  job.AddTensor({3 * kPoolBlockBytes}, 1, false, &random);
  const auto pool = PoolOf(4);
  auto memory = pool->Reserve(3, {});
  ASSERT_TRUE(IsOk(memory));
  std::byte* const second = memory->blocks()[1];
  StagedFile staged(job.segments, kSum, std::move(*memory));
  ASSERT_TRUE(IsOk(staged.Fill(2, {})));
  second[2 * kSum + 77] ^= std::byte{4};
  MemoryFile file;
  EXPECT_TRUE(FailsWith(staged.WriteTo(file, 0, {}), StatusCode::kDataLoss,
                        {"10485760, 11534336", "written to while it was being staged"}));
}

}  // namespace
}  // namespace varve::staged_file_test
