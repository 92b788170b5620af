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
  [[nodiscard]] std::vector<CopyPair> Pairs() {
    std::vector<CopyPair> pairs;
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
    ASSERT_TRUE(IsOk(CopyPairs(Direction::kToHost, memories.Pairs(), pool, threads)));
    EXPECT_TRUE(memories.on_host == wanted);
    for (std::string& content : memories.on_host) {
      content = random.Bytes(content.size());
    }
    wanted = memories.on_host;
    ASSERT_TRUE(IsOk(CopyPairs(Direction::kToDevice, memories.Pairs(), pool, threads)));
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
  const CopyPair pair{reinterpret_cast<std::byte*>(host.data()), memory.data(), 3, 1};
  fake_cuda_fill(1, nullptr, memory.data(), 3, 'x', 30);
  ASSERT_TRUE(IsOk(CopyPairs(Direction::kToHost, {&pair, 1}, pool)));
  EXPECT_EQ(host, "xxx");
  host = "new";
  fake_cuda_fill(1, nullptr, memory.data(), 3, 'y', 30);
  ASSERT_TRUE(IsOk(CopyPairs(Direction::kToDevice, {&pair, 1}, pool)));
  EXPECT_EQ(memory.content(), "new");
}

TEST(HostCopies, AFailureNamesTheDeviceAndTheTensorsThatHaveNames) {
  BufferPool pool(std::uint64_t{16} << 20);
  const OnDevice memory(1, "abc");
  std::string host(3, '.');
  CopyPair pair{reinterpret_cast<std::byte*>(host.data()), memory.data(), 3, 1};
  for (const auto& [name, message] :
       {std::pair("", "copy 3 bytes from CUDA device 1"),
        std::pair("model.weight", "tensor \"model.weight\": copy 3")}) {
    pair.name = name;
    fake_cuda_fail("cuEventSynchronize", 719, 0);
    EXPECT_TRUE(FailsWith(CopyPairs(Direction::kToHost, {&pair, 1}, pool), StatusCode::kUnavailable,
                          {message}));
    EXPECT_EQ(fake_cuda_counts().bytes_queued, 0U);
  }
  fake_cuda_fail("cuEventSynchronize", 719, 0);
  const std::vector<CopyPair> two{pair, {pair.on_host, pair.other, 3, 1, nullptr, "bias"}};
  EXPECT_TRUE(FailsWith(CopyPairs(Direction::kToHost, two, pool), StatusCode::kUnavailable,
                        {"tensors \"model.weight\" to \"bias\""}));
}

TEST(HostCopies, OfTheHostAloneNeedNoDeviceAndTouchNothingElse) {
  Random random(2);
  std::vector<std::string> sources;
  for (const std::size_t size :
       {1U, 0U, 100U, 4096U, 3U << 20, 4U << 20, (9U << 20) + 5, 77U, 2U << 20, 2U << 20, 1U}) {
    sources.push_back(random.Bytes(size));
  }
  BufferPool pool(std::uint64_t{16} << 20);
  for (const int threads : {1, 3, 0}) {
    std::vector<std::string> targets;
    for (const std::string& source : sources) {
      targets.emplace_back(source.size() + 1, 'Z');
    }
    std::vector<CopyPair> pairs;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      pairs.push_back({reinterpret_cast<std::byte*>(targets[i].data()),
                       reinterpret_cast<std::byte*>(sources[i].data()), sources[i].size()});
    }
    ASSERT_TRUE(IsOk(CopyPairs(Direction::kToHost, pairs, pool, threads)));
    for (std::size_t i = 0; i < sources.size(); ++i) {
      EXPECT_TRUE(targets[i] == sources[i] + 'Z') << i;
    }
  }
}

TEST(HostCopies, OfTheHostAndOfDevicesGoTogether) {
  Random random(3);
  Memories memories(&random);
  std::vector<CopyPair> pairs;
  std::vector<std::string> sources(memories.on_host.size());
  std::vector<std::string> targets(memories.on_host.size());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    pairs.push_back(memories.Pairs()[i]);
    sources[i] = random.Bytes(1000 * i);
    targets[i].resize(sources[i].size());
    pairs.push_back({reinterpret_cast<std::byte*>(targets[i].data()),
                     reinterpret_cast<std::byte*>(sources[i].data()), sources[i].size()});
  }
  BufferPool pool(std::uint64_t{16} << 20);
  ASSERT_TRUE(IsOk(CopyPairs(Direction::kToHost, pairs, pool, 3)));
  EXPECT_TRUE(targets == sources);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    EXPECT_TRUE(memories.on_host[i] == memories.on_devices[i]->content()) << i;
  }
}

}  // namespace
}  // namespace varve::host_copies_test
