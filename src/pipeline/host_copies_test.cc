#include "pipeline/host_copies.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/device_memory.h"
#include "support/random.h"
#include "support/status_matchers.h"

namespace varve::host_copies_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::OnDevice;
using test::Random;

/// Memory of two devices and of the host, of several sizes.
class Memories {
 public:
  explicit Memories(Random* random) {
    const std::vector<std::uint64_t> sizes{
        1, 0, 100, 3U << 20, 8U << 20, (17U << 20) + 5, 77, 2U << 20, 8U << 20};
    for (const std::uint64_t size : sizes) {
      on_host.push_back(random->Bytes(size));
      const int device = static_cast<int>(on_devices.size() % 2);
      on_devices.push_back(std::make_unique<OnDevice>(device, random->Bytes(size)));
    }
  }
  [[nodiscard]] std::vector<HostAndDevice> Pairs() {
    std::vector<HostAndDevice> pairs;
    for (std::size_t i = 0; i < on_host.size(); ++i) {
      pairs.push_back({reinterpret_cast<std::byte*>(on_host[i].data()), on_devices[i]->data(),
                       on_host[i].size(), on_devices[i]->device()});
    }
    return pairs;
  }

  std::vector<std::string> on_host;
  std::vector<std::unique_ptr<OnDevice>> on_devices;
};

TEST(HostCopies, PassBothWaysThroughRegisteredBlocks) {
  Random random(1);
  const FakeCudaCounts before = fake_cuda_counts();
  for (const int threads : {1, 3, 0}) {
    Memories memories(&random);
    std::vector<std::string> wanted;
    for (const auto& memory : memories.on_devices) {
      wanted.push_back(memory->content());
    }
    BufferPool pool(std::uint64_t{16} << 20);
    ASSERT_TRUE(IsOk(CopyByBlocks(Direction::kToHost, memories.Pairs(), pool, threads)));
    EXPECT_TRUE(memories.on_host == wanted);
    for (std::string& content : memories.on_host) {
      content = random.Bytes(content.size());
    }
    wanted = memories.on_host;
    ASSERT_TRUE(IsOk(CopyByBlocks(Direction::kToDevice, memories.Pairs(), pool, threads)));
    EXPECT_TRUE(memories.on_host == wanted);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_TRUE(memories.on_devices[i]->content() == wanted[i]) << i;
    }
  }
  const FakeCudaCounts after = fake_cuda_counts();
  EXPECT_EQ(after.to_pageable + after.from_pageable, before.to_pageable + before.from_pageable);
  EXPECT_EQ(after.registrations_now, before.registrations_now);
}

TEST(HostCopies, ComeAfterWhatIsQueuedOnTheStream) {
  BufferPool pool(std::uint64_t{16} << 20);
  const OnDevice memory(1, "abc");
  std::string host(3, '.');
  const HostAndDevice pair{reinterpret_cast<std::byte*>(host.data()), memory.data(), 3, 1};
  fake_cuda_fill(1, nullptr, memory.data(), 3, 'x', 30);
  ASSERT_TRUE(IsOk(CopyByBlocks(Direction::kToHost, {&pair, 1}, pool)));
  EXPECT_EQ(host, "xxx");
  host = "new";
  fake_cuda_fill(1, nullptr, memory.data(), 3, 'y', 30);
  ASSERT_TRUE(IsOk(CopyByBlocks(Direction::kToDevice, {&pair, 1}, pool)));
  EXPECT_EQ(memory.content(), "new");
}

TEST(HostCopies, AFailureNamesTheDevice) {
  BufferPool pool(std::uint64_t{16} << 20);
  const OnDevice memory(1, "abc");
  std::string host(3, '.');
  const HostAndDevice pair{reinterpret_cast<std::byte*>(host.data()), memory.data(), 3, 1};
  fake_cuda_fail("cuEventSynchronize", 719, 0);
  EXPECT_TRUE(FailsWith(CopyByBlocks(Direction::kToHost, {&pair, 1}, pool),
                        StatusCode::kUnavailable, {"copy 3 bytes from CUDA device 1"}));
  EXPECT_EQ(fake_cuda_counts().bytes_queued, 0U);
}

}  // namespace
}  // namespace varve::host_copies_test
