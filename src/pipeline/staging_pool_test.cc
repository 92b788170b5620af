#include "pipeline/staging_pool.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "device/cuda_devices.h"
#include "support/fake_cuda.h"
#include "support/status_matchers.h"
#include "varve/events.h"

namespace varve::staging_pool_test {
namespace {

using test::FailsWith;
using test::IsOk;

std::unique_ptr<StagingPool> PoolOf(std::size_t blocks) {
  auto pool = StagingPool::Make(blocks * kPoolBlockBytes);
  EXPECT_TRUE(IsOk(pool));
  return std::move(*pool);
}

TEST(StagingPool, GivesDistinctAlignedBlocksAndTakesThemBack) {
  const auto pool = PoolOf(4);
  std::set<std::byte*> seen;
  {
    const auto reserved = pool->Reserve(4, {});
    ASSERT_TRUE(IsOk(reserved));
    for (std::byte* block : reserved->blocks()) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 4096, 0U);
      std::memset(block, 1, kPoolBlockBytes);
      seen.insert(block);
    }
    EXPECT_EQ(seen.size(), 4U);
  }
  const auto again = pool->Reserve(4, {});
  ASSERT_TRUE(IsOk(again));
  EXPECT_EQ(std::set(again->blocks().begin(), again->blocks().end()), seen);
}

TEST(StagingPool, TakesNoMoreMemoryThanIsUsed) {
  const auto pool = PoolOf(1000);
  EXPECT_EQ(pool->warm_blocks(), 0U);
  for (int save = 0; save < 3; ++save) {
    ASSERT_TRUE(IsOk(pool->Reserve(3, {})));
    EXPECT_EQ(pool->warm_blocks(), 3U);
  }
}

TEST(StagingPool, PreparesAheadAndNotBeyondItsBudget) {
  const auto pool = PoolOf(3);
  pool->Prepare(kPoolBlockBytes + 1);
  pool->WaitPrepared();
  EXPECT_EQ(pool->warm_blocks(), 2U);
  pool->Prepare(100 * kPoolBlockBytes);
  pool->WaitPrepared();
  EXPECT_EQ(pool->warm_blocks(), 3U);
}

TEST(StagingPool, SharedMemoryIsTakenOnceAndThenLeftAlone) {
  const auto pool = std::move(*StagingPool::Make(4 * kPoolBlockBytes, /*shared=*/true));
  pool->Prepare(2 * kPoolBlockBytes);  // Half of it; a writer takes the rest.
  pool->WaitPrepared();
  const auto reserved = pool->Reserve(4, {});
  ASSERT_TRUE(IsOk(reserved));
  for (std::byte* block : reserved->blocks()) {
    reserved->TakeSharedPages(block);
    const bool huge = reserved->HasHugePages(block);
    std::memset(block, 7, kPoolBlockBytes);
    reserved->TakeSharedPages(block);
    EXPECT_EQ(reserved->HasHugePages(block), huge);
    EXPECT_EQ(std::count(block, block + kPoolBlockBytes, std::byte{7}),
              static_cast<std::ptrdiff_t>(kPoolBlockBytes));
  }
}

TEST(StagingPool, MoreThanAllIsAll) {
  const auto pool = PoolOf(3);
  const auto reserved = pool->Reserve(100, {});
  ASSERT_TRUE(IsOk(reserved));
  EXPECT_EQ(reserved->blocks().size(), 3U);
}

TEST(StagingPool, AWaitEndsOnRequestAndBlocksNoOther) {
  const auto pool = PoolOf(2);
  auto all = pool->Reserve(2, {});
  ASSERT_TRUE(IsOk(all));
  std::stop_source stop;
  std::jthread waiting(
      [&] { EXPECT_TRUE(FailsWith(pool->Reserve(2, stop.get_token()), StatusCode::kCancelled)); });
  std::jthread behind([&] { EXPECT_TRUE(IsOk(pool->Reserve(1, {}))); });
  stop.request_stop();
  waiting.join();
  *all = {};
  behind.join();
}

// Each takes all it needs at once, so no two of them can hold what the other waits for.
TEST(StagingPool, SavesThatTogetherNeedMoreThanThereIsAllGetTheirTurn) {
  const auto pool = PoolOf(8);
  std::atomic<int> served{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 6; ++t) {
      threads.emplace_back([&] {
        for (int turn = 0; turn < 200; ++turn) {
          const auto reserved = pool->Reserve(5, {});
          served += reserved.ok() && reserved->blocks().size() == 5;
        }
      });
    }
  }
  EXPECT_EQ(served, 1200);
}

TEST(StagingPool, PreparesForADeviceByOneRegistration) {
  // The first to prepare also registers memory for samples, which the process keeps.
  (void)PinnedMemory::Make(**CudaDevices::Get(), 1, std::uint64_t{1} << 20);
  const FakeCudaCounts before = fake_cuda_counts();
  {
    const auto pool = PoolOf(5);
    pool->Prepare(3 * kPoolBlockBytes, 1);
    pool->WaitPrepared();
    EXPECT_EQ(fake_cuda_counts().registrations, before.registrations + 1);
    EXPECT_EQ(pool->memory_report().registrations, 1);
    EXPECT_EQ(pool->memory_report().registered_bytes, 3 * kPoolBlockBytes);
    EXPECT_EQ(pool->memory_report().refused, "");
    const auto reserved = pool->Reserve(3, {});
    ASSERT_TRUE(IsOk(reserved));
    for (const std::byte* block : reserved->blocks()) {
      EXPECT_TRUE((*CudaDevices::Get())->IsRegistered(block, kPoolBlockBytes));
    }
    pool->Prepare(2 * kPoolBlockBytes, 1);  // It is there.
    pool->PinUsed(1);
    pool->WaitPrepared();
    EXPECT_EQ(fake_cuda_counts().registrations, before.registrations + 1);
  }
  EXPECT_EQ(fake_cuda_counts().registered_bytes, before.registered_bytes);
  EXPECT_EQ(fake_cuda_counts().unregistered_late, before.unregistered_late);
  EXPECT_EQ(fake_cuda_registered_unmapped(), 0);
}

TEST(StagingPool, RegistersSharedMemoryToo) {
  const FakeCudaCounts before = fake_cuda_counts();
  {
    const auto pool = std::move(*StagingPool::Make(4 * kPoolBlockBytes, /*shared=*/true));
    pool->Prepare(2 * kPoolBlockBytes, 0);
    pool->WaitPrepared();
    EXPECT_EQ(pool->memory_report().registered_bytes, 2 * kPoolBlockBytes);
  }
  EXPECT_EQ(fake_cuda_counts().unregistered_late, before.unregistered_late);
}

TEST(StagingPool, RegistersNothingWithoutADevice) {
  const FakeCudaCounts before = fake_cuda_counts();
  const auto pool = PoolOf(2);
  pool->Prepare(2 * kPoolBlockBytes);
  pool->WaitPrepared();
  EXPECT_EQ(fake_cuda_counts().registrations, before.registrations);
}

TEST(StagingPool, MemoryThatGrowsBlockByBlockTakesFewRegistrations) {
  const FakeCudaCounts before = fake_cuda_counts();
  const auto pool = PoolOf(512);
  std::vector<StagingPool::Reservation> held;
  for (std::uint64_t used = 1; used <= 512; ++used) {
    auto reserved = pool->Reserve(1, {});
    ASSERT_TRUE(IsOk(reserved));
    held.push_back(std::move(*reserved));
    pool->PinUsed(0);
    pool->WaitPrepared();
    ASSERT_GT(2 * pool->memory_report().registered_bytes, used * kPoolBlockBytes);
    ASSERT_LE(pool->memory_report().registered_bytes, used * kPoolBlockBytes) << "used by nobody";
  }
  EXPECT_LE(fake_cuda_counts().registrations - before.registrations, 14U);
}

TEST(StagingPool, MemoryThatTheDriverRefusesStaysPageableAndIsReportedOnce) {
  std::atomic<int> events{0};
  SetEventFunction([&](const Event& event) {
    events += event.message.find("staging memory stays pageable") != std::string::npos ? 1 : 0;
    EXPECT_EQ(event.level, EventLevel::kWarning);
  });
  const FakeCudaCounts before = fake_cuda_counts();
  const auto pool = PoolOf(8);
  fake_cuda_limit_registration(1, 0);
  pool->Prepare(2 * kPoolBlockBytes, 0);
  pool->WaitPrepared();
  pool->Prepare(4 * kPoolBlockBytes, 0);  // Refused as well, and not reported again.
  pool->WaitPrepared();
  fake_cuda_limit_registration(0, 0);
  pool->Prepare(4 * kPoolBlockBytes, 0);  // Not asked for again.
  pool->WaitPrepared();
  SetEventFunction({});
  EXPECT_EQ(events, 1);
  EXPECT_EQ(fake_cuda_counts().registrations, before.registrations);
  const StagingMemory report = pool->memory_report();
  EXPECT_EQ(report.registrations, 0);
  EXPECT_EQ(report.registered_bytes, 0U);
  EXPECT_NE(report.refused.find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos) << report.refused;
  const auto reserved = pool->Reserve(1, {});
  ASSERT_TRUE(IsOk(reserved));
  EXPECT_FALSE((*CudaDevices::Get())->IsRegistered(reserved->blocks().front(), 1));
}

TEST(DefaultStagingBudget, IsShared) {
  EXPECT_GT(DefaultStagingBudget(1), 0U);
  EXPECT_LT(DefaultStagingBudget(8), DefaultStagingBudget(1));
}

}  // namespace
}  // namespace varve::staging_pool_test
