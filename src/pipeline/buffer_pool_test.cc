#include "pipeline/buffer_pool.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/fake_cuda.h"
#include "support/status_matchers.h"

namespace varve::buffer_pool_test {
namespace {

using test::IsOk;

BufferPool::Lease MustAcquire(BufferPool* pool) {
  auto lease = pool->Acquire();
  EXPECT_TRUE(IsOk(lease));
  return lease.ok() ? std::move(*lease) : BufferPool::Lease();
}

TEST(BufferPool, BlocksAreWholePagesAndWritable) {
  BufferPool pool(2 * kPoolBlockBytes);
  const auto lease = MustAcquire(&pool);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(lease.data()) % 4096, 0U);
  std::memset(lease.data(), 0x5A, kPoolBlockBytes);
}

TEST(BufferPool, GivesTheLastReturnedBlockOutAgain) {
  BufferPool pool(4 * kPoolBlockBytes);
  const std::byte* first = MustAcquire(&pool).data();
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(MustAcquire(&pool).data(), first);
  }
}

TEST(BufferPool, ALeaseMovesAndReturnsItsBlockOnce) {
  BufferPool pool(2 * kPoolBlockBytes);
  auto a = MustAcquire(&pool);
  std::byte* block = a.data();
  BufferPool::Lease b = std::move(a);
  EXPECT_EQ(b.data(), block);
  BufferPool::Lease c;
  c = std::move(b);
  EXPECT_EQ(c.data(), block);
  c = BufferPool::Lease();
  const auto again = MustAcquire(&pool);
  const auto other = MustAcquire(&pool);
  EXPECT_EQ(again.data(), block);
  EXPECT_NE(other.data(), block);
}

TEST(BufferPool, NeverHasMoreBlocksOutThanTheBudgetAllows) {
  constexpr int kBlocks = 3;
  BufferPool pool(kBlocks * kPoolBlockBytes);
  std::atomic<int> out{0};
  std::atomic<int> most{0};
  std::mutex mutex;  // Guards `seen`.
  std::set<std::byte*> seen;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 200; ++i) {
          const auto lease = MustAcquire(&pool);
          const int now = ++out;
          int before = most;
          while (before < now && !most.compare_exchange_weak(before, now)) {
          }
          {
            const std::scoped_lock lock(mutex);
            seen.insert(lease.data());
          }
          std::this_thread::yield();
          --out;
        }
      });
    }
  }
  EXPECT_LE(most, kBlocks);
  EXPECT_LE(seen.size(), static_cast<std::size_t>(kBlocks));
}

TEST(BufferPool, WaitsForABlockToComeBack) {
  BufferPool pool(2 * kPoolBlockBytes);
  auto a = MustAcquire(&pool);
  const auto b = MustAcquire(&pool);
  std::atomic<bool> got{false};
  std::jthread waiter([&] {
    const auto lease = MustAcquire(&pool);
    got = true;
  });
  EXPECT_FALSE(got) << "the budget is out";
  a = BufferPool::Lease();
  waiter.join();
  EXPECT_TRUE(got);
}

TEST(BufferPool, HasTwoBlocksHoweverSmallTheBudget) {
  BufferPool pool(1);
  const auto a = MustAcquire(&pool);
  const auto b = MustAcquire(&pool);
  EXPECT_NE(a.data(), b.data());
}

CudaDevices& Devices() { return **CudaDevices::Get(); }

TEST(BufferPool, RegistersItsBlocksInRangesOf64MiB) {
  constexpr std::uint64_t kBlocks = 16;
  const FakeCudaCounts before = fake_cuda_counts();
  {
    BufferPool pool(kBlocks * kPoolBlockBytes);
    std::vector<BufferPool::Lease> leases;
    (void)MustAcquire(&pool);
    EXPECT_EQ(fake_cuda_counts().registrations, before.registrations) << "nobody asked for it";
    for (std::uint64_t i = 0; i < kBlocks; ++i) {
      leases.push_back(MustAcquire(&pool));
      for (int turn = 0; turn < 2; ++turn) {
        EXPECT_TRUE(leases.back().Pin(Devices(), 0));
      }
      EXPECT_TRUE(Devices().IsRegistered(leases.back().data(), kPoolBlockBytes));
    }
    EXPECT_EQ(fake_cuda_counts().registrations, before.registrations + 2);
    EXPECT_EQ(fake_cuda_counts().registered_bytes,
              before.registered_bytes + kBlocks * kPoolBlockBytes);
  }
  EXPECT_EQ(fake_cuda_counts().registered_bytes, before.registered_bytes);
  EXPECT_EQ(fake_cuda_counts().unregistered_late, before.unregistered_late);
  EXPECT_EQ(fake_cuda_registered_unmapped(), 0);
}

TEST(BufferPool, AsksOnceWhereTheDriverRefuses) {
  const FakeCudaCounts before = fake_cuda_counts();
  BufferPool pool(2 * kPoolBlockBytes);
  const auto lease = MustAcquire(&pool);
  fake_cuda_fail("cuMemHostRegister", 2, 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(lease.Pin(Devices(), 0));
  }
  EXPECT_EQ(fake_cuda_counts().registrations, before.registrations);
  EXPECT_FALSE(Devices().IsRegistered(lease.data(), 1));
}

TEST(BufferPool, AForkedChildHasASharedPoolOfItsOwn) {
  BufferPool& parents = BufferPool::Shared();
  std::vector<BufferPool::Lease> all;  // A child that had the same pool would wait for ever.
  for (std::uint64_t i = 0; i < kDefaultBudgetBytes / kPoolBlockBytes; ++i) {
    all.push_back(MustAcquire(&parents));
  }
  ASSERT_TRUE(all.front().Pin(Devices(), 0));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    const auto lease = BufferPool::Shared().Acquire();
    const bool own = lease.ok() && &BufferPool::Shared() != &parents;
    if (own) {
      std::memset(lease->data(), 1, kPoolBlockBytes);
    }
    ::_exit(own ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(&BufferPool::Shared(), &parents);
}

}  // namespace
}  // namespace varve::buffer_pool_test
