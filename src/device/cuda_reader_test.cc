#include "device/cuda_reader.h"

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/fake_cuda.h"
#include "support/status_matchers.h"

namespace varve::cuda_reader_test {
namespace {

using test::FailsWith;
using test::IsOk;

constexpr int kLaunchFailed = 719;

/// Memory of a fake device.
class OnDevice {
 public:
  OnDevice(int device, const std::string& content)
      : memory_(fake_cuda_alloc(device, content.size())) {
    fake_cuda_poke(memory_, content.data(), content.size());
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { fake_cuda_free(memory_); }
  [[nodiscard]] const std::byte* data() const { return static_cast<const std::byte*>(memory_); }
  [[nodiscard]] void* get() const { return memory_; }

 private:
  void* memory_;
};

std::byte* Bytes(std::string* text) { return reinterpret_cast<std::byte*>(text->data()); }

std::unique_ptr<CudaReader> Reader(bool pin = true) { return std::move(*CudaReader::Make(pin)); }

TEST(CudaReader, CopiesFromSeveralDevicesInOneCall) {
  const OnDevice zero(0, "from device 0");
  const OnDevice one(1, "from device 1");
  const auto reader = Reader();
  std::string out(21, '.');
  ASSERT_TRUE(
      IsOk(reader->Read(std::vector<DeviceCopy>{{0, zero.data(), Bytes(&out), 4},
                                                {0, zero.data() + 5, Bytes(&out) + 4, 8},
                                                {1, one.data() + 4, Bytes(&out) + 12, 9}})));
  EXPECT_EQ(out, "fromdevice 0 device 1");
}

TEST(CudaReader, ReadsWhatQueuedWorkHasMadeOfTheMemory) {
  const OnDevice memory(0, std::string(1000, 'a'));
  const auto reader = Reader();
  std::string out(1000, '.');
  const std::vector<DeviceCopy> copies{{0, memory.data(), Bytes(&out), out.size()}};
  for (void* const stream : {fake_cuda_stream(0), static_cast<void*>(nullptr)}) {
    const char value = stream == nullptr ? 'c' : 'b';
    fake_cuda_fill(0, stream, memory.get(), out.size(), static_cast<std::uint8_t>(value), 50);
    ASSERT_TRUE(IsOk(reader->After(0, stream)));
    ASSERT_TRUE(IsOk(reader->Read(copies)));
    EXPECT_EQ(out, std::string(1000, value));
  }
}

TEST(CudaReader, DoesNotWaitForWorkThatIsQueuedLater) {
  const OnDevice memory(0, "old");
  const OnDevice other(0, "...");
  const auto reader = Reader();
  void* const stream = fake_cuda_stream(0);
  ASSERT_TRUE(IsOk(reader->After(0, stream)));
  // Would take for ever if the copy were behind it: ten minutes of the training's work.
  fake_cuda_fill(0, stream, other.get(), 3, 'x', 600'000);
  std::string out(3, '.');
  ASSERT_TRUE(IsOk(reader->Read(std::vector<DeviceCopy>{{0, memory.data(), Bytes(&out), 3}})));
  EXPECT_EQ(out, "old");
}

TEST(CudaReader, NoCopyIsUnderWayWhenReadReturnsAlsoWhenItFails) {
  const auto reader = Reader();
  fake_cuda_slow_copies(20'000);
  const OnDevice memory(0, std::string(100, 'a'));
  std::string out(100, '.');
  const std::vector<DeviceCopy> copies(4, {0, memory.data(), Bytes(&out), out.size()});
  fake_cuda_fail("cuMemcpyDtoHAsync", kLaunchFailed, 3);
  EXPECT_TRUE(FailsWith(reader->Read(copies), StatusCode::kUnavailable,
                        {"copy from CUDA device 0: CUDA_ERROR_LAUNCH_FAILED (719): unspecified"}));
  EXPECT_EQ(fake_cuda_counts().copies_under_way, 0U);
  EXPECT_EQ(out, std::string(100, 'a'));  // By those that were queued.
  fake_cuda_slow_copies(0);
}

TEST(CudaReader, ErrorsNameTheDeviceAndWhatWasDone) {
  const auto reader = Reader();
  EXPECT_TRUE(FailsWith(reader->After(7, nullptr), StatusCode::kUnavailable,
                        {"begin to copy from CUDA device 7: CUDA error (101)"}));
  for (const char* const function : {"cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"}) {
    fake_cuda_fail(function, kLaunchFailed, 0);
    EXPECT_TRUE(FailsWith(reader->After(1, nullptr), StatusCode::kUnavailable,
                          {"wait for the work queued on CUDA device 1"}));
  }
  const OnDevice memory(1, "abc");
  std::string out(3, '.');
  const std::vector<DeviceCopy> copies{{1, memory.data(), Bytes(&out), 3}};
  for (const char* const function :
       {"cuCtxPushCurrent", "cuEventCreate", "cuEventRecord", "cuEventSynchronize"}) {
    fake_cuda_fail(function, kLaunchFailed, 0);
    EXPECT_TRUE(
        FailsWith(reader->Read(copies), StatusCode::kUnavailable, {"copy from CUDA device 1"}));
  }
  ASSERT_TRUE(IsOk(reader->Read(copies)));  // None of it is for good.
}

TEST(CudaReader, RegistersMemoryOnceAndGivesAllBackAtItsEnd) {
  const FakeCudaCounts before = fake_cuda_counts();
  std::vector<std::byte> first(8192);
  std::vector<std::byte> second(8192);
  {
    const auto reader = Reader();
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(reader->Pin(0, first));
      EXPECT_TRUE(reader->Pin(1, second));
    }
    EXPECT_EQ(fake_cuda_counts().registrations - before.registrations, 2U);
    EXPECT_EQ(fake_cuda_counts().registered_bytes - before.registered_bytes, 16384U);
    const OnDevice memory(0, "abc");
    ASSERT_TRUE(IsOk(reader->Read(std::vector<DeviceCopy>{{0, memory.data(), first.data(), 3}})));
    EXPECT_EQ(fake_cuda_counts().to_registered - before.to_registered, 3U);
    EXPECT_EQ(fake_cuda_counts().events, before.events);
  }
  const FakeCudaCounts after = fake_cuda_counts();
  EXPECT_EQ(after.registered_bytes, before.registered_bytes);
  EXPECT_EQ(after.contexts, before.contexts);
  EXPECT_EQ(after.streams, before.streams);
}

TEST(CudaReader, MemoryThatTheDriverRefusesIsCopiedToAllTheSame) {
  const auto reader = Reader();
  const OnDevice memory(0, "abc");
  std::vector<std::byte> target(4096);
  fake_cuda_fail("cuMemHostRegister", 2, 0);  // Out of memory.
  EXPECT_FALSE(reader->Pin(0, target));
  EXPECT_FALSE(reader->Pin(0, target));  // Not asked for again with each copy.
  EXPECT_FALSE(reader->Pin(9, std::span(target).subspan(100)));  // No such device.
  ASSERT_TRUE(IsOk(reader->Read(std::vector<DeviceCopy>{{0, memory.data(), target.data(), 3}})));
  EXPECT_EQ(std::memcmp(target.data(), "abc", 3), 0);
  const auto without = Reader(false);
  EXPECT_FALSE(without->Pin(0, target));
}

TEST(CudaReader, ThreadsReadAtTheSameTime) {
  const auto reader = Reader();
  const OnDevice memory(0, std::string(1000, 'a'));
  fake_cuda_slow_copies(5'000);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        std::string out(1000, '.');
        for (int round = 0; round < 5; ++round) {
          ASSERT_TRUE(
              IsOk(reader->Read(std::vector<DeviceCopy>{{0, memory.data(), Bytes(&out), 1000}})));
          ASSERT_EQ(out, std::string(1000, 'a'));
        }
      });
    }
  }
  fake_cuda_slow_copies(0);
  EXPECT_GE(fake_cuda_counts().most_at_once, 2U);
}

}  // namespace
}  // namespace varve::cuda_reader_test
