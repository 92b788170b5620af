#include "pipeline/host_buffer.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/device_memory.h"
#include "support/random.h"
#include "support/status_matchers.h"

namespace varve::host_buffer_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::OnDevice;
using test::Random;

TEST(HostBuffer, HoldsWhatWasCopiedWhateverTheSizes) {
  Random random(1);
  std::vector<std::string> sources;
  for (const std::size_t size :
       {1U, 0U, 100U, 4096U, 3U << 20, 4U << 20, (9U << 20) + 5, 77U, 2U << 20, 2U << 20, 1U}) {
    sources.push_back(random.Bytes(size));
  }
  std::vector<HostCopy> copies;
  std::uint64_t at = 3;
  for (const std::string& source : sources) {
    copies.push_back({at, source.data(), source.size()});
    at += source.size() + 5;
  }
  auto buffer = HostBuffer::Make(at);
  ASSERT_TRUE(IsOk(buffer));
  for (const int threads : {1, 3, 0}) {
    std::fill_n((*buffer)->data(), at, std::byte{0x5A});
    ASSERT_TRUE(IsOk((*buffer)->CopyIn(copies, threads)));
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const auto* copied = reinterpret_cast<const char*>((*buffer)->data() + copies[i].at);
      EXPECT_TRUE(std::string_view(copied, sources[i].size()) == sources[i]) << i;
      EXPECT_EQ((*buffer)->data()[copies[i].at + sources[i].size()], std::byte{0x5A}) << i;
    }
  }
}

/// A 3-dimensional tensor of `sizes` whose dimensions lie in another order in memory, with gaps.
struct Strided {
  Strided(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t item_bytes,
          std::uint64_t seed)
      : sizes{a, b, c},
        strides{1, static_cast<std::int64_t>(a * (c + 1)), static_cast<std::int64_t>(a)},
        item(item_bytes),
        memory(Random(seed).Bytes(a * b * (c + 1) * item_bytes)) {}

  /// The elements in row-major order.
  [[nodiscard]] std::string content() const {
    std::string out;
    for (std::uint64_t i = 0; i < sizes[0]; ++i) {
      for (std::uint64_t j = 0; j < sizes[1]; ++j) {
        for (std::uint64_t k = 0; k < sizes[2]; ++k) {
          out += memory.substr((i + j * sizes[0] * (sizes[2] + 1) + k * sizes[0]) * item, item);
        }
      }
    }
    return out;
  }
  /// A copy from `source`, which has the memory.
  [[nodiscard]] HostCopy CopyTo(std::uint64_t at, const void* source) const {
    return {at, source, sizes[0] * sizes[1] * sizes[2] * item, {}, sizes, strides, item};
  }

  Dims sizes;
  Strides strides;
  std::uint64_t item;
  std::string memory;
};

TEST(HostBuffer, PutsStridedTensorsOfTheHostAndOfDevicesInOrder) {
  const std::vector<Strided> tensors{
      {3, 5, 7, 4, 1}, {1, 1, 1, 8, 2}, {130, 70, 131, 8, 3}, {20, 30, 40, 2, 4}, {9, 1, 2, 1, 5}};
  std::vector<std::unique_ptr<OnDevice>> on_devices;
  std::vector<HostCopy> copies;
  std::vector<std::string> expected;
  std::uint64_t at = 0;
  const auto add = [&](HostCopy copy, std::optional<HostCopy::Device> device,
                       const std::string& content) {
    copy.device = device;
    copies.push_back(copy);
    expected.push_back(content);
    at += copy.bytes + 64;
  };
  for (const Strided& tensor : tensors) {
    add(tensor.CopyTo(at, tensor.memory.data()), {}, tensor.content());
    for (const int device : {0, 1}) {
      on_devices.push_back(std::make_unique<OnDevice>(device, tensor.memory));
      const OnDevice& memory = *on_devices.back();
      add(tensor.CopyTo(at, memory.data()), HostCopy::Device{device}, tensor.content());
      add({at, memory.data(), tensor.memory.size()}, HostCopy::Device{device}, tensor.memory);
    }
  }
  const FakeCudaCounts before = fake_cuda_counts();
  {
    auto buffer = HostBuffer::Make(at);
    ASSERT_TRUE(IsOk(buffer));
    for (const bool refused : {true, false}) {  // To register the memory, once.
      fake_cuda_limit_registration(refused ? 1 : 0, 0);
      if (!refused) {
        buffer = HostBuffer::Make(at);
      }
      ASSERT_TRUE(IsOk((*buffer)->CopyIn(copies, 3)));
      for (std::size_t i = 0; i < copies.size(); ++i) {
        const auto* copied = reinterpret_cast<const char*>((*buffer)->data() + copies[i].at);
        ASSERT_TRUE(std::string_view(copied, copies[i].bytes) == expected[i]) << i;
      }
    }
    EXPECT_EQ(fake_cuda_counts().registrations, before.registrations + 1);
  }
  EXPECT_EQ(fake_cuda_counts().registered_bytes, before.registered_bytes);
  EXPECT_EQ(fake_cuda_counts().unregistered_late, before.unregistered_late);
}

TEST(HostBuffer, ComesAfterTheWorkOfTheStreamAndNamesADeviceThatFails) {
  const OnDevice memory(1, std::string(1000, 'a'));
  void* const stream = fake_cuda_stream(1);
  auto buffer = HostBuffer::Make(1000);
  ASSERT_TRUE(IsOk(buffer));
  const HostCopy copy{0, memory.data(), 1000, HostCopy::Device{1, stream}, {}, {},
                      1, "model.weight"};
  fake_cuda_fill(1, stream, memory.data(), 1000, 'b', 50);
  ASSERT_TRUE(IsOk((*buffer)->CopyIn({&copy, 1})));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>((*buffer)->data()), 1000),
            std::string(1000, 'b'));
  fake_cuda_fail("cuEventSynchronize", 719, 0);
  EXPECT_TRUE(FailsWith((*buffer)->CopyIn({&copy, 1}), StatusCode::kUnavailable,
                        {"tensor \"model.weight\": copy 1000 bytes from CUDA device 1"}));
  EXPECT_EQ(fake_cuda_counts().bytes_queued, 0U);
}

TEST(HostBuffer, RefusesWhatDoesNotFit) {
  auto buffer = HostBuffer::Make(10);
  ASSERT_TRUE(IsOk(buffer));
  const std::string source(100, 'x');
  const std::uint64_t end = (*buffer)->size();
  for (const HostCopy& copy : {HostCopy{end, source.data(), 1}, HostCopy{end - 1, source.data(), 2},
                               HostCopy{~std::uint64_t{0}, source.data(), 2}}) {
    EXPECT_TRUE(FailsWith((*buffer)->CopyIn({&copy, 1}), StatusCode::kInvalidArgument));
  }
  const HostCopy another{0, source.data(), 12, {}, {2, 3}, {1, 2}, 4};  // Of 24 bytes.
  EXPECT_TRUE(FailsWith((*buffer)->CopyIn({&another, 1}), StatusCode::kInvalidArgument));
  EXPECT_TRUE(FailsWith(HostBuffer::Make(~std::uint64_t{0}), StatusCode::kOutOfSpace));
}

}  // namespace
}  // namespace varve::host_buffer_test
