#include "device/cuda_devices.h"

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "support/device_memory.h"
#include "support/status_matchers.h"

namespace varve::cuda_devices_test {
namespace {

using test::AnyMoves;
using test::FailsWith;
using test::IsOk;
using test::kMovesBytes;
using test::MakeMoves;
using test::OnDevice;
using test::Pages;
using test::Random;
using test::RunOf;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// A fresh object: what one test's driver refuses is not remembered in the next.
std::unique_ptr<CudaDevices> Devices() { return std::move(*CudaDevices::MakeForTest()); }

/// Makes random moves of two devices, in both directions, and compares all memory with a reference.
void ExpectRightMoves(CudaDevices& devices, bool registered, std::uint64_t seed) {
  Random random(seed);
  const OnDevice zero(0, random.Bytes(kMovesBytes));
  const OnDevice one(1, random.Bytes(kMovesBytes));
  const Pages host(2 * kMovesBytes);
  if (registered) {
    ASSERT_TRUE(IsOk(devices.Register(0, host.bytes())));
  }
  for (const Direction direction : {Direction::kToHost, Direction::kToDevice}) {
    std::string on_host = random.Bytes(2 * kMovesBytes);
    host.Set(on_host);
    std::vector<DeviceMove> moves;
    for (const OnDevice* device : {&zero, &one}) {
      std::byte* const half = host.data() + (device == &one ? kMovesBytes : 0);
      const auto more = AnyMoves(device->device(), device->data(), half, &random);
      std::string on_device = device->content();
      MakeMoves(direction, more, &on_device, device->data(), &on_host, host.data());
      if (direction == Direction::kToDevice) {
        ASSERT_TRUE(IsOk(devices.Move(direction, more)));
        ASSERT_TRUE(device->content() == on_device) << "seed " << seed;
      }
      moves.insert(moves.end(), more.begin(), more.end());
    }
    if (direction == Direction::kToHost) {
      ASSERT_TRUE(IsOk(devices.Move(direction, moves)));
    }
    ASSERT_TRUE(host.content() == on_host) << "seed " << seed;
  }
  EXPECT_EQ(fake_cuda_counts().bytes_queued, 0U);
  devices.Unregister(host.data());
}

TEST(CudaDevices, MovesEveryShapeBothWaysByKernelsAndInBatches) {
  const auto devices = Devices();
  const FakeCudaCounts before = fake_cuda_counts();
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    ExpectRightMoves(*devices, true, seed);
  }
  const FakeCudaCounts after = fake_cuda_counts();
  EXPECT_GT(after.kernel_bytes, before.kernel_bytes);
  EXPECT_GT(after.batches, before.batches);
  EXPECT_EQ(after.to_pageable + after.from_pageable, before.to_pageable + before.from_pageable);
}

TEST(CudaDevices, MovesTheSameWhereTheDriverMakesNoBatches) {
  const auto devices = Devices();
  const FakeCudaCounts before = fake_cuda_counts();
  fake_cuda_hide("cuMemcpyBatchAsync");
  for (std::uint64_t seed = 100; seed < 105; ++seed) {
    ExpectRightMoves(*devices, true, seed);
  }
  fake_cuda_hide(nullptr);
  EXPECT_EQ(fake_cuda_counts().batches, before.batches);
  EXPECT_GT(fake_cuda_counts().kernels, before.kernels);
}

TEST(CudaDevices, MovesTheSameWhereTheDriverCompilesNoKernels) {
  const auto devices = Devices();
  const FakeCudaCounts before = fake_cuda_counts();
  fake_cuda_hide("cuModuleLoadData");
  for (std::uint64_t seed = 200; seed < 205; ++seed) {
    ExpectRightMoves(*devices, true, seed);
  }
  fake_cuda_hide(nullptr);
  EXPECT_EQ(fake_cuda_counts().kernels, before.kernels);
  EXPECT_GT(fake_cuda_counts().copies, before.copies);
}

TEST(CudaDevices, MovesTheSameToMemoryThatIsNotRegistered) {
  const auto devices = Devices();
  const FakeCudaCounts before = fake_cuda_counts();
  for (std::uint64_t seed = 300; seed < 305; ++seed) {
    ExpectRightMoves(*devices, false, seed);
  }
  const FakeCudaCounts after = fake_cuda_counts();
  EXPECT_EQ(after.kernels, before.kernels);
  EXPECT_EQ(after.batches, before.batches);
  EXPECT_EQ(after.to_registered + after.from_registered,
            before.to_registered + before.from_registered);
  ExpectRightMoves(*devices, true, 300);
  EXPECT_GT(fake_cuda_counts().batches, before.batches) << "batches were not given up";
}

TEST(CudaDevices, ACallThatMayNotCompileCopiesByRowsUntilKernelsAreThere) {
  const auto devices = Devices();
  const OnDevice memory(0, Random(2).Bytes(4096));
  const Pages host(4096);
  ASSERT_TRUE(IsOk(devices->Register(0, host.bytes())));
  DeviceMove samples = RunOf(0, memory.data(), host.data(), 16);
  samples.inner = samples.count = 32;
  samples.device_inner = samples.host_inner = 128;
  const FakeCudaCounts before = fake_cuda_counts();
  const auto move = [&] {
    host.Set(std::string(4096, '.'));
    ASSERT_TRUE(
        IsOk(devices->Move(Direction::kToHost, {&samples, 1}, CudaDevices::Kernels::kOfBefore)));
    for (std::size_t at = 0; at < 4096; at += 128) {
      EXPECT_TRUE(host.content().substr(at, 16) == memory.content().substr(at, 16)) << at;
    }
  };
  move();
  EXPECT_EQ(fake_cuda_counts().modules, before.modules);
  EXPECT_EQ(fake_cuda_counts().kernels, before.kernels);
  EXPECT_TRUE(devices->WantsKernels(0));
  devices->CompileKernels(0);
  EXPECT_FALSE(devices->WantsKernels(0));
  move();
  EXPECT_GT(fake_cuda_counts().modules, before.modules);
  EXPECT_EQ(fake_cuda_counts().kernels, before.kernels + 1);
  devices->Unregister(host.data());
}

TEST(CudaDevices, CopiesRowsThatAreFurtherApartThanTheDriversPitch) {
  const auto devices = Devices();
  constexpr std::size_t kApart = std::size_t{1} << 31;
  const OnDevice memory(0, "abcdefgh");
  const Pages host(kApart + 4096);
  DeviceMove move = RunOf(0, memory.data(), host.data(), 4);
  move.inner = move.count = 2;
  move.device_inner = 4;
  move.host_inner = static_cast<std::int64_t>(kApart);
  ASSERT_TRUE(IsOk(devices->Move(Direction::kToHost, {&move, 1})));
  EXPECT_EQ(std::memcmp(host.data(), "abcd", 4), 0);
  EXPECT_EQ(std::memcmp(host.data() + kApart, "efgh", 4), 0);
}

TEST(CudaDevices, QueuesNoMoreBytesThanTheCapWhoeverAsks) {
  constexpr std::uint64_t kRow = 512 * 1024;
  constexpr std::uint64_t kRows = 16;  // Each a call of its own.
  constexpr std::uint64_t kBlock = kRows * kRow;
  const auto devices = Devices();
  const OnDevice memory(0, std::string(kBlock, 'm'));
  const Pages host(8 * kBlock);
  fake_cuda_slow_copies(2000);  // Copies take longer than calls, and calls so long that all threads
  fake_cuda_slow_calls(1000);   // ask for room before the first has queued its block.
  fake_cuda_reset_most();
  std::atomic<int> ready{0};
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        ++ready;
        while (ready < 8) {
          std::this_thread::yield();
        }
        for (int turn = 0; turn < 2; ++turn) {
          DeviceMove move = RunOf(0, memory.data(), host.data() + t * kBlock, kRow);
          move.inner = move.count = kRows;
          move.device_inner = move.host_inner = static_cast<std::int64_t>(kRow);
          EXPECT_TRUE(IsOk(devices->Move(Direction::kToHost, {&move, 1})));
        }
      });
    }
  }
  fake_cuda_slow_copies(0);
  fake_cuda_slow_calls(0);
  EXPECT_LE(fake_cuda_counts().most_bytes_queued, CudaDevices::kMostQueuedBytes);
  EXPECT_GT(fake_cuda_counts().most_bytes_queued, kBlock) << "they wait for each other";
}

TEST(CudaDevices, MakesACallThatIsLargerThanTheCap) {
  constexpr std::uint64_t kBytes = CudaDevices::kMostQueuedBytes + kMiB;
  const auto devices = Devices();
  const OnDevice memory(0, std::string(kBytes, 'm'));
  const Pages host(kBytes);
  for (int i = 0; i < 2; ++i) {
    const DeviceMove move = RunOf(0, memory.data(), host.data(), kBytes);
    ASSERT_TRUE(IsOk(devices->Move(Direction::kToHost, {&move, 1})));
  }
  EXPECT_TRUE(host.content() == memory.content());
}

TEST(CudaDevices, KeepsNothingOfMovesThatHaveEnded) {
  const auto devices = Devices();
  const OnDevice memory(0, "abc");
  std::string out(3, '.');
  const DeviceMove move =
      RunOf(0, memory.data(), reinterpret_cast<std::byte*>(out.data()), out.size());
  const std::uint64_t before = fake_cuda_counts().events;
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(IsOk(devices->Move(Direction::kToHost, {&move, 1})));
  }
  EXPECT_EQ(fake_cuda_counts().events, before);
}

/// Moves of one device that need every function of the driver.
class EveryFunction {
 public:
  explicit EveryFunction(Direction direction)
      : direction_(direction),
        memory_(0, Random(1).Bytes(kBytes)),
        registered_(kBytes),
        pageable_(kBytes) {}

  /// Makes the moves by a fresh object, while the function's call with that number fails. Returns
  /// nothing where that was not a call of Move. Errors: as CudaDevices's.
  std::optional<Status> Make(bool registered, const char* function, int calls) {
    const auto devices = Devices();
    const Pages& host = registered ? registered_ : pageable_;
    host.Set(std::string(kBytes, 'h'));
    fake_cuda_poke(memory_.data(), content_.data(), kBytes);
    DeviceMove strided = RunOf(0, memory_.data() + 60'000, host.data() + 60'000, 4);
    strided.inner = strided.count = 100;
    strided.device_inner = 8;
    strided.host_inner = 12;
    moves_ = {RunOf(0, memory_.data(), host.data(), 20'000),
              RunOf(0, memory_.data() + 30'000, host.data() + 30'000, 20'000), strided};
    fake_cuda_fail(function, 999, calls);
    if (registered && !devices->Register(0, host.bytes()).ok()) {
      return std::nullopt;
    }
    Status moved = devices->Move(direction_, moves_);
    fake_cuda_fail(function, 0, 0);  // Where it was not called so often.
    EXPECT_EQ(fake_cuda_counts().bytes_queued, 0U) << moved.message();
    if (moved.ok()) {
      std::string on_device = content_;
      std::string on_host(kBytes, 'h');
      MakeMoves(direction_, moves_, &on_device, memory_.data(), &on_host, host.data());
      EXPECT_TRUE(memory_.content() == on_device);
      EXPECT_TRUE(host.content() == on_host);
    }
    devices->Unregister(host.data());
    return moved;
  }

 private:
  static constexpr std::size_t kBytes = 65'536;
  const Direction direction_;
  const OnDevice memory_;
  const std::string content_ = memory_.content();
  const Pages registered_;
  const Pages pageable_;
  std::vector<DeviceMove> moves_;
};

TEST(CudaDevices, AnyCallThatFailsIsAnErrorByNameOrMadeUpForAndNothingIsUnderWay) {
  fake_cuda_slow_copies(500);
  std::map<std::string, int> errors;
  for (const Direction direction : {Direction::kToHost, Direction::kToDevice}) {
    const bool out = direction == Direction::kToHost;
    EveryFunction moves(direction);
    for (const bool registered : {true, false}) {
      for (const char* const function :
           {"cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent", "cuCtxPopCurrent",
            "cuThreadExchangeStreamCaptureMode", "cuStreamCreate", "cuStreamSynchronize",
            "cuEventCreate", "cuEventDestroy", "cuEventRecord", "cuEventSynchronize",
            "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuMemcpy2DAsync", "cuMemcpyBatchAsync",
            "cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel"}) {
        for (int calls = 0; calls < (registered ? 7 : 4); ++calls) {
          const std::optional<Status> status = moves.Make(registered, function, calls);
          if (status && !status->ok()) {
            ++errors[function];
            EXPECT_TRUE(FailsWith(
                *status, StatusCode::kUnavailable,
                {out ? "copy 40400 bytes from CUDA device 0" : "copy 40400 bytes to CUDA device 0",
                 "CUDA_ERROR_UNKNOWN (999)"}));
          }
        }
      }
    }
  }
  fake_cuda_slow_copies(0);
  for (const char* const function :
       {"cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent", "cuStreamCreate",
        "cuEventCreate", "cuEventRecord", "cuEventSynchronize", "cuMemcpyDtoHAsync",
        "cuMemcpyHtoDAsync", "cuMemcpy2DAsync", "cuLaunchKernel"}) {
    EXPECT_GT(errors[function], 0) << function;
  }
  for (const char* const function :
       {"cuMemcpyBatchAsync", "cuModuleLoadData", "cuModuleGetFunction", "cuEventDestroy"}) {
    EXPECT_EQ(errors[function], 0) << function;
  }
}

TEST(CudaDevices, AFailureOfOneDeviceWaitsForTheMovesOfTheOther) {
  const auto devices = Devices();
  const OnDevice zero(0, std::string(100, 'a'));
  const OnDevice one(1, std::string(100, 'b'));
  std::string out(200, '.');
  auto* const host = reinterpret_cast<std::byte*>(out.data());
  const std::vector<DeviceMove> moves{RunOf(0, zero.data(), host, 100),
                                      RunOf(1, one.data(), host + 100, 100)};
  fake_cuda_slow_copies(20'000);
  fake_cuda_fail("cuMemcpyDtoHAsync", 999, 1);
  EXPECT_TRUE(FailsWith(devices->Move(Direction::kToHost, moves), StatusCode::kUnavailable,
                        {"copy 100 bytes from CUDA device 1"}));
  fake_cuda_slow_copies(0);
  EXPECT_EQ(fake_cuda_counts().bytes_queued, 0U);
  EXPECT_EQ(out.substr(0, 100), std::string(100, 'a'));
}

TEST(CudaDevices, ADeadDevicesErrorSaysThatTheCopyDidNotCauseIt) {
  const auto devices = Devices();
  const OnDevice memory(0, "abc");
  std::string out(3, '.');
  const DeviceMove move = RunOf(0, memory.data(), reinterpret_cast<std::byte*>(out.data()), 3);
  ASSERT_TRUE(IsOk(devices->Move(Direction::kToHost, {&move, 1})));
  fake_cuda_poison(700);
  EXPECT_TRUE(FailsWith(devices->Move(Direction::kToHost, {&move, 1}), StatusCode::kUnavailable,
                        {"copy 3 bytes from CUDA device 0", "CUDA_ERROR_ILLEGAL_ADDRESS (700)",
                         "Work that the program had queued before caused it, not this copy"}));
  fake_cuda_poison(0);
  EXPECT_EQ(fake_cuda_counts().bytes_queued, 0U);
}

TEST(CudaDevices, ADeviceThatDiesEndsTheWaitsOfAllThreads) {
  const auto devices = Devices();
  const OnDevice memory(0, std::string(kMiB, 'm'));
  const Pages host(4 * kMiB);
  fake_cuda_slow_copies(50'000);
  fake_cuda_log_begin();
  std::atomic<int> failed{0};
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        const DeviceMove move = RunOf(0, memory.data(), host.data() + t * kMiB, kMiB);
        failed += devices->Move(Direction::kToHost, {&move, 1}).ok() ? 0 : 1;
      });
    }
    while (fake_cuda_log_size() == 0) {  // Until one is under way.
      std::this_thread::yield();
    }
    fake_cuda_poison(719);
  }
  EXPECT_GT(failed, 0);
  fake_cuda_poison(0);
  fake_cuda_slow_copies(0);
}

TEST(CudaDevices, AfterOrdersMovesOfBothDirectionsBehindTheWorkOfAStream) {
  const auto devices = Devices();
  const OnDevice memory(0, std::string(1000, 'a'));
  for (void* const stream : {fake_cuda_stream(0), static_cast<void*>(nullptr)}) {
    std::string host(1000, '.');
    const DeviceMove move =
        RunOf(0, memory.data(), reinterpret_cast<std::byte*>(host.data()), host.size());
    fake_cuda_fill(0, stream, memory.data(), 1000, 'b', 50);
    ASSERT_TRUE(IsOk(devices->After(Direction::kToHost, 0, stream)));
    ASSERT_TRUE(IsOk(devices->Move(Direction::kToHost, {&move, 1})));
    EXPECT_EQ(host, std::string(1000, 'b'));
    host.assign(1000, 'c');
    fake_cuda_fill(0, stream, memory.data(), 1000, 'd', 50);
    ASSERT_TRUE(IsOk(devices->After(Direction::kToDevice, 0, stream)));
    ASSERT_TRUE(IsOk(devices->Move(Direction::kToDevice, {&move, 1})));
    EXPECT_EQ(memory.content(), std::string(1000, 'c'));
  }
}

TEST(CudaDevices, AMoveDoesNotWaitForWorkThatIsQueuedLater) {
  const auto devices = Devices();
  const OnDevice memory(0, "old");
  const OnDevice other(0, "...");
  void* const stream = fake_cuda_stream(0);
  ASSERT_TRUE(IsOk(devices->After(Direction::kToHost, 0, stream)));
  fake_cuda_fill(0, stream, other.data(), 3, 'x', 600'000);  // Ten minutes.
  std::string out(3, '.');
  const DeviceMove move = RunOf(0, memory.data(), reinterpret_cast<std::byte*>(out.data()), 3);
  ASSERT_TRUE(IsOk(devices->Move(Direction::kToHost, {&move, 1})));
  EXPECT_EQ(out, "old");
}

TEST(CudaDevices, ErrorsOfAfterNameTheDevice) {
  const auto devices = Devices();
  EXPECT_TRUE(FailsWith(devices->After(Direction::kToHost, 7, nullptr), StatusCode::kUnavailable,
                        {"begin to use CUDA device 7: CUDA error (101)"}));
  ASSERT_TRUE(IsOk(devices->After(Direction::kToHost, 1, nullptr)));
  for (const char* const function :
       {"cuCtxPushCurrent", "cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"}) {
    fake_cuda_fail(function, 999, 0);
    EXPECT_TRUE(FailsWith(devices->After(Direction::kToHost, 1, nullptr), StatusCode::kUnavailable,
                          {"wait for the work queued on CUDA device 1"}))
        << function;
  }
  ASSERT_TRUE(IsOk(devices->After(Direction::kToHost, 1, nullptr)));  // None of it is for good.
}

TEST(CudaDevices, NoCallBreaksACaptureOfAnotherThread) {
  const OnDevice memory(0, Random(5).Bytes(65'536));
  const Pages host(65'536);
  fake_cuda_begin_capture();
  std::jthread([&] {
    const auto devices = Devices();  // Which has to begin to use the device, too.
    EXPECT_TRUE(IsOk(devices->Register(0, host.bytes())));
    EXPECT_TRUE(IsOk(devices->After(Direction::kToHost, 0, nullptr)));
    DeviceMove move = RunOf(0, memory.data(), host.data(), 64);  // By a kernel.
    move.inner = move.count = 100;
    move.device_inner = 640;
    move.host_inner = 64;
    EXPECT_TRUE(IsOk(devices->Move(Direction::kToHost, {&move, 1})));
    const DeviceMove copy = RunOf(0, memory.data(), host.data(), 65'536);
    const auto work = devices->Queue(Direction::kToHost, {&copy, 1});
    EXPECT_TRUE(IsOk(work) && IsOk(CudaDevices::Wait(**work)));
    fake_cuda_fail("cuEventSynchronize", 999, 0);
    EXPECT_FALSE(devices->Move(Direction::kToDevice, {&copy, 1}).ok());
    devices->Unregister(host.data());
  }).join();
  EXPECT_EQ(fake_cuda_end_capture(), 0);
  EXPECT_TRUE(host.content() == memory.content());
}

TEST(CudaDevices, RegistersMemoryUntilItIsTakenBack) {
  const auto devices = Devices();
  const Pages host(8192);
  const FakeCudaCounts before = fake_cuda_counts();
  EXPECT_FALSE(devices->IsRegistered(host.data(), 1));
  ASSERT_TRUE(IsOk(devices->Register(1, host.bytes())));
  EXPECT_TRUE(devices->IsRegistered(host.data(), 8192));
  EXPECT_TRUE(devices->IsRegistered(host.data() + 8000, 192));
  EXPECT_FALSE(devices->IsRegistered(host.data() + 8000, 193));
  EXPECT_FALSE(devices->IsRegistered(host.data() - 1, 2));
  EXPECT_EQ(fake_cuda_counts().registered_bytes, before.registered_bytes + 8192);
  devices->Unregister(host.data());
  EXPECT_FALSE(devices->IsRegistered(host.data(), 1));
  EXPECT_EQ(fake_cuda_counts().registered_bytes, before.registered_bytes);
  devices->Unregister(host.data());  // Nothing.
}

TEST(CudaDevices, MemoryThatTheDriverRefusesToRegisterIsNotRegistered) {
  const auto devices = Devices();
  const Pages host(8192);
  fake_cuda_limit_registration(4096, 0);
  EXPECT_TRUE(FailsWith(devices->Register(0, host.bytes()), StatusCode::kUnavailable,
                        {"register 8192 bytes of memory with the driver of CUDA device 0",
                         "CUDA_ERROR_OUT_OF_MEMORY (2)"}));
  fake_cuda_limit_registration(0, 0);
  EXPECT_FALSE(devices->IsRegistered(host.data(), 1));
}

TEST(CudaDevices, UsesNoDeviceThatNoMoveNames) {
  const FakeCudaCounts before = fake_cuda_counts();
  const auto devices = Devices();
  EXPECT_EQ(fake_cuda_counts().contexts, before.contexts);
  const OnDevice memory(1, "abc");
  const Pages host(4096);
  ASSERT_TRUE(IsOk(devices->Register(1, host.bytes())));
  const DeviceMove move = RunOf(1, memory.data(), host.data(), 3);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(IsOk(devices->Move(Direction::kToHost, {&move, 1})));
  }
  devices->Unregister(host.data());
  EXPECT_EQ(fake_cuda_counts().contexts, before.contexts + 1);
  EXPECT_EQ(fake_cuda_counts().streams, before.streams + 2);
}

TEST(CudaDevices, ACallThatFailedToBeginWithADeviceTakesNothingTwice) {
  const auto devices = Devices();
  const FakeCudaCounts before = fake_cuda_counts();
  for (const char* const function : {"cuStreamCreate", "cuCtxPushCurrent", "cuStreamCreate"}) {
    fake_cuda_fail(function, 999, 0);
    EXPECT_FALSE(devices->After(Direction::kToHost, 0, nullptr).ok());
  }
  fake_cuda_fail("cuStreamCreate", 999, 1);
  EXPECT_FALSE(devices->After(Direction::kToHost, 0, nullptr).ok());
  ASSERT_TRUE(IsOk(devices->After(Direction::kToHost, 0, nullptr)));
  EXPECT_EQ(fake_cuda_counts().contexts, before.contexts + 1);
  EXPECT_EQ(fake_cuda_counts().streams, before.streams + 2);
}

}  // namespace
}  // namespace varve::cuda_devices_test
