#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "device/cuda_devices.h"
#include "support/fake_cuda.h"
#include "support/random.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "tensor/box.h"
#include "varve/async_save.h"
#include "varve/checkpoint.h"

namespace varve::device_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::Random;
using test::TempDir;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

struct Piece {
  std::string fqn;
  std::string content;
  std::optional<int> device;
};

void ExpectIn(const std::string& path, const std::vector<Piece>& pieces) {
  auto reader = CheckpointReader::Open(path);
  ASSERT_TRUE(IsOk(reader));
  for (const Piece& piece : pieces) {
    std::string memory(piece.content.size(), '\0');
    const Dims shape{memory.size()};
    const std::vector<TargetTensor> targets{
        {piece.fqn, DType::kUInt8, shape, WholeBox(shape), memory.data(), {}}};
    ASSERT_TRUE(IsOk((*reader)->ReadTensors(targets, {})));
    ASSERT_TRUE(memory == piece.content) << piece.fqn;
  }
}

/// A state whose tensors are on two devices and on the host, small and large ones in turn.
class Mixed {
 public:
  explicit Mixed(std::uint64_t large, std::uint64_t seed = 1) {
    Random random(seed);
    for (int i = 0; i < 24; ++i) {
      const std::uint64_t bytes = i % 3 == 0 ? large + static_cast<std::uint64_t>(i) : 77;
      pieces.push_back({"t" + std::to_string(i), random.Bytes(bytes),
                        i % 4 == 3 ? std::nullopt : std::optional(i % 2)});
    }
    for (const Piece& piece : pieces) {
      void* memory = nullptr;
      if (piece.device) {
        memory = fake_cuda_alloc(*piece.device, piece.content.size());
        fake_cuda_poke(memory, piece.content.data(), piece.content.size());
      }
      on_device_.push_back(memory);
    }
  }
  Mixed(const Mixed&) = delete;
  Mixed& operator=(const Mixed&) = delete;
  ~Mixed() { Free(); }

  [[nodiscard]] State state(void* stream = nullptr) const {
    State state;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Dims shape{pieces[i].content.size()};
      SourceTensor tensor{pieces[i].fqn, DType::kUInt8, shape, WholeBox(shape),
                          HostMemory{pieces[i].content.data()}};
      if (pieces[i].device) {
        tensor.source = CudaMemory{on_device_[i], *pieces[i].device, stream};
      }
      state.tensors.push_back(std::move(tensor));
    }
    return state;
  }

  [[nodiscard]] std::uint64_t device_bytes() const {
    std::uint64_t bytes = 0;
    for (const Piece& piece : pieces) {
      bytes += piece.device ? piece.content.size() : 0;
    }
    return bytes;
  }

  /// Queues the writes of a step, which the devices do a little later.
  void Step(int device, void* stream, std::uint8_t value) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].device == device) {
        fake_cuda_fill(device, stream, on_device_[i], pieces[i].content.size(), value, 2);
        pieces[i].content.assign(pieces[i].content.size(), static_cast<char>(value));
      }
    }
  }

  /// Releases the devices' memory.
  void Free() {
    for (void*& memory : on_device_) {
      if (memory != nullptr) {
        fake_cuda_free(memory);
      }
      memory = nullptr;
    }
  }

  std::vector<Piece> pieces;

 private:
  std::vector<void*> on_device_;
};

std::unique_ptr<Stager> DeviceStager(std::uint64_t budget = 128 * kMiB,
                                     std::optional<bool> pinned = {}) {
  return std::move(*Stager::Make({.budget_bytes = budget, .pinned_memory = pinned}));
}

TEST(DeviceSave, OfASynchronousSaveNeedsNoStager) {
  const TempDir dir;
  for (const Format format : {Format::kVarve, Format::kDcp}) {
    Mixed training(3 * kMiB);
    training.Step(1, nullptr, 0x5A);  // Still running at the call.
    SaveOptions options;
    options.format = format;
    const std::string path = dir / std::string(FormatName(format));
    const auto report = Save(training.state(), path, options);
    ASSERT_TRUE(IsOk(report));
    EXPECT_EQ(report->device_bytes, training.device_bytes());
    EXPECT_EQ(report->pageable_bytes, 0U);
    EXPECT_EQ(fake_cuda_counts().bytes_queued, 0U);
    ExpectIn(path, training.pieces);
  }
}

TEST(DeviceSave, TensorsOfDevicesAndOfTheHostAreSavedTogetherInBothFormats) {
  const TempDir dir;
  const auto stager = DeviceStager();
  for (const Format format : {Format::kVarve, Format::kDcp}) {
    for (const bool overlapped : {false, true}) {
      Mixed training(3 * kMiB);
      const std::string path =
          dir / (std::string(FormatName(format)) + (overlapped ? "-overlapped" : ""));
      AsyncSaveOptions options;
      options.save.format = format;
      options.overlapped = overlapped;
      options.check_torn = true;
      const AsyncSaveHandle save = AsyncSave(training.state(), path, options, *stager);
      ASSERT_TRUE(IsOk(save.staged().get()));
      training.Free();  // No thread may read it any more.
      const auto& report = save.done().get();
      ASSERT_TRUE(IsOk(report));
      EXPECT_EQ(report->device_bytes, training.device_bytes());
      EXPECT_EQ(report->pageable_bytes, 0U);
      ExpectIn(path, training.pieces);
    }
  }
}

TEST(DeviceSave, SeesTheStepsThatWereQueuedBeforeTheCallAndNoLaterOnes) {
  const TempDir dir;
  const auto stager = DeviceStager();
  Mixed training(3 * kMiB);
  void* const stream = fake_cuda_stream(0);
  for (int step = 0; step < 4; ++step) {
    training.Step(0, stream, static_cast<std::uint8_t>(step));  // Still running at the call.
    training.Step(1, nullptr, static_cast<std::uint8_t>(100 + step));
    State state = training.state();
    for (SourceTensor& tensor : state.tensors) {
      if (auto* cuda = std::get_if<CudaMemory>(&tensor.source); cuda && cuda->device == 0) {
        cuda->stream = stream;
      }
    }
    const std::string path = dir / std::to_string(step);
    const AsyncSaveHandle save = AsyncSave(std::move(state), path, {}, *stager);
    ASSERT_TRUE(IsOk(save.staged().get()));
    // Queued as soon as the save reports its copy as made: none of it may be in the checkpoint.
    const std::vector<Piece> saved = training.pieces;
    training.Step(0, stream, 0xEE);
    training.Step(1, nullptr, 0xEE);
    ASSERT_TRUE(IsOk(save.done().get()));
    ExpectIn(path, saved);
  }
}

TEST(DeviceSave, InWavesToo) {
  const TempDir dir;
  const auto stager = DeviceStager(16 * kMiB);
  const Mixed training(5 * kMiB);
  const AsyncSaveHandle save = AsyncSave(training.state(), dir / "a", {}, *stager);
  const auto& report = save.done().get();
  ASSERT_TRUE(IsOk(report));
  EXPECT_TRUE(report->in_waves);
  EXPECT_EQ(report->device_bytes, training.device_bytes());
  ExpectIn(dir / "a", training.pieces);
}

TEST(DeviceSave, RegistersStagingMemoryOnceAndAheadOfTheFirstSaveIfAsked) {
  const TempDir dir;
  // The first to prepare also registers memory for samples, which the process keeps.
  (void)PinnedMemory::Make(**CudaDevices::Get(), 0, kMiB);
  const FakeCudaCounts before = fake_cuda_counts();
  {
    const auto stager = DeviceStager();
    stager->Prepare(64 * kMiB, 0);  // Twice that, for two saves in flight.
    stager->WaitPrepared();
    const FakeCudaCounts prepared = fake_cuda_counts();
    EXPECT_EQ(prepared.registrations - before.registrations, 1U);
    EXPECT_EQ(prepared.registered_bytes - before.registered_bytes, 128 * kMiB);
    const Mixed training(3 * kMiB);
    for (int i = 0; i < 3; ++i) {
      const AsyncSaveHandle save =
          AsyncSave(training.state(), dir / std::to_string(i), {}, *stager);
      ASSERT_TRUE(IsOk(save.done().get()));
      EXPECT_EQ(save.done().get()->staging_memory.registered_bytes, 128 * kMiB);
      EXPECT_EQ(save.done().get()->staging_memory.registrations, 1);
    }
    EXPECT_EQ(fake_cuda_counts().registrations, prepared.registrations);
    EXPECT_EQ(fake_cuda_counts().to_pageable, before.to_pageable);
  }
  EXPECT_EQ(fake_cuda_counts().registered_bytes, before.registered_bytes);
  EXPECT_EQ(fake_cuda_counts().unregistered_late, before.unregistered_late);
}

TEST(DeviceSave, BeforeStagingMemoryIsRegisteredCopiesPassThroughMemoryThatIs) {
  const TempDir dir;
  const auto stager = DeviceStager();
  const FakeCudaCounts before = fake_cuda_counts();
  for (int i = 0; i < 2; ++i) {
    const Mixed training(3 * kMiB);
    const std::string path = dir / std::to_string(i);
    const AsyncSaveHandle save = AsyncSave(training.state(), path, {}, *stager);
    ASSERT_TRUE(IsOk(save.done().get()));
    // The first save has it registered, in the background, for the second.
    EXPECT_EQ(save.done().get()->staging_memory.registrations, i);
    EXPECT_EQ(save.done().get()->pageable_bytes, 0U);
    ExpectIn(path, training.pieces);
    stager->WaitPrepared();
  }
  EXPECT_EQ(fake_cuda_counts().to_pageable, before.to_pageable);
}

TEST(DeviceSave, AStagerMayEndWhileItsMemoryIsPrepared) {
  const FakeCudaCounts before = fake_cuda_counts();
  {
    const auto stager = DeviceStager();
    stager->Prepare(128 * kMiB, 1);
  }
  EXPECT_EQ(fake_cuda_counts().registered_bytes, before.registered_bytes);
  EXPECT_EQ(fake_cuda_counts().unregistered_late, before.unregistered_late);
}

TEST(DeviceSave, TakesNoMoreContextsAndStreamsWithEachStager) {
  const TempDir dir;
  const Mixed training(1000);
  FakeCudaCounts first{};
  for (int i = 0; i < 3; ++i) {
    const auto stager = DeviceStager(32 * kMiB);
    const AsyncSaveHandle save = AsyncSave(training.state(), dir / std::to_string(i), {}, *stager);
    ASSERT_TRUE(IsOk(save.done().get()));
    first = i == 0 ? fake_cuda_counts() : first;
  }
  EXPECT_EQ(fake_cuda_counts().contexts, first.contexts);
  EXPECT_EQ(fake_cuda_counts().streams, first.streams);
  EXPECT_EQ(fake_cuda_counts().events, first.events);
}

TEST(DeviceSave, WithoutPinnedMemoryItRegistersNoneAndSaysSo) {
  const TempDir dir;
  const Mixed training(kMiB);
  const auto never = DeviceStager(64 * kMiB, false);
  const FakeCudaCounts before = fake_cuda_counts();
  never->Prepare(8 * kMiB, 0);
  const AsyncSaveHandle save = AsyncSave(training.state(), dir / "a", {}, *never);
  ASSERT_TRUE(IsOk(save.done().get()));
  EXPECT_EQ(save.done().get()->pageable_bytes, training.device_bytes());
  never->WaitPrepared();
  EXPECT_EQ(fake_cuda_counts().registrations, before.registrations);
  ExpectIn(dir / "a", training.pieces);
}

TEST(DeviceSave, WhereTheDriverRefusesToRegisterItSaysWhy) {
  const TempDir dir;
  const Mixed training(kMiB);
  const auto stager = DeviceStager();
  fake_cuda_limit_registration(1, 0);
  stager->Prepare(8 * kMiB, 0);
  stager->WaitPrepared();
  fake_cuda_limit_registration(0, 0);
  const AsyncSaveHandle save = AsyncSave(training.state(), dir / "a", {}, *stager);
  ASSERT_TRUE(IsOk(save.done().get()));
  const StagingMemory memory = save.done().get()->staging_memory;
  EXPECT_EQ(memory.registered_bytes, 0U);
  EXPECT_NE(memory.refused.find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos) << memory.refused;
  ExpectIn(dir / "a", training.pieces);
}

TEST(DeviceSave, ADeviceThatFailsFailsTheSaveByNameAndTheNextOneIsMade) {
  const TempDir dir;
  const auto stager = DeviceStager();
  const Mixed training(3 * kMiB);
  fake_cuda_fail("cuEventSynchronize", 719, 2);
  const AsyncSaveHandle failed = AsyncSave(training.state(), dir / "a", {}, *stager);
  EXPECT_TRUE(FailsWith(failed.staged().get(), StatusCode::kUnavailable,
                        {"save " + (dir / "a") + ": tensor", "bytes from CUDA device"}));
  EXPECT_TRUE(FailsWith(failed.done().get().status(), StatusCode::kUnavailable,
                        {"CUDA_ERROR_LAUNCH_FAILED"}));
  EXPECT_EQ(fake_cuda_counts().bytes_queued, 0U);
  fake_cuda_fail("cuEventRecord", 719, 0);  // The call waits there for the queued work.
  const AsyncSaveHandle early = AsyncSave(training.state(), dir / "a", {}, *stager);
  EXPECT_TRUE(FailsWith(early.done().get().status(), StatusCode::kUnavailable,
                        {"tensor \"t0\"", "wait for the work queued on CUDA device 0"}));
  const AsyncSaveHandle next = AsyncSave(training.state(), dir / "a", {}, *stager);
  ASSERT_TRUE(IsOk(next.done().get()));
  ExpectIn(dir / "a", training.pieces);
}

TEST(DeviceSave, AStagerThatMayNotCopyFromDevicesRefusesThemByName) {
  const TempDir dir;
  const Mixed training(1000);
  const auto stager =
      std::move(*Stager::Make({.budget_bytes = 32 * kMiB, .copy_from_devices = false}));
  const AsyncSaveHandle save = AsyncSave(training.state(), dir / "a", {}, *stager);
  EXPECT_TRUE(FailsWith(save.done().get().status(), StatusCode::kInvalidArgument,
                        {"tensor \"t0\"", "is on CUDA device 0", "copy_from_devices = false"}));
  EXPECT_TRUE(FailsWith(Stager::Make({.copy_from_devices = false, .pinned_memory = true}).status(),
                        StatusCode::kInvalidArgument, {"copy_from_devices"}));
}

TEST(DeviceSave, OfStridedMemoryHasItsElementsInOrder) {
  const TempDir dir;
  constexpr std::uint64_t kRows = 700;
  constexpr std::uint64_t kColumns = 1100;
  const std::string rows = Random(4).Bytes(kRows * kColumns * 4);
  std::string columns(rows.size(), '\0');
  for (std::uint64_t i = 0; i < kRows; ++i) {
    for (std::uint64_t j = 0; j < kColumns; ++j) {
      columns.replace((j * kRows + i) * 4, 4, rows, (i * kColumns + j) * 4, 4);
    }
  }
  void* const memory = fake_cuda_alloc(1, columns.size());
  fake_cuda_poke(memory, columns.data(), columns.size());
  const auto stager = DeviceStager();
  State state;
  state.tensors.push_back({"w",
                           DType::kFloat32,
                           {kRows, kColumns},
                           WholeBox({kRows, kColumns}),
                           CudaMemory{memory, 1, nullptr, {1, kRows}}});
  const AsyncSaveHandle save = AsyncSave(std::move(state), dir / "a", {}, *stager);
  ASSERT_TRUE(IsOk(save.done().get()));
  fake_cuda_free(memory);
  std::string out(rows.size(), '\0');
  auto reader = CheckpointReader::Open(dir / "a");
  ASSERT_TRUE(IsOk(reader));
  const std::vector<TargetTensor> targets{
      {"w", DType::kFloat32, {kRows, kColumns}, WholeBox({kRows, kColumns}), out.data(), {}}};
  ASSERT_TRUE(IsOk((*reader)->ReadTensors(targets, {})));
  EXPECT_TRUE(out == rows);
}

TEST(DeviceSave, AShareOfAShardIsCopiedFromItsPlace) {
  // Replicas that are equal for certain are split, by rows and where rows are few by columns.
  const TempDir dir;
  constexpr std::uint64_t kRows = 2;
  constexpr std::uint64_t kColumns = 6 * kMiB;
  const std::string content = Random(3).Bytes(kRows * kColumns);
  void* const memory = fake_cuda_alloc(0, content.size());
  fake_cuda_poke(memory, content.data(), content.size());
  auto front = MakeInProcessCoordinators(3);
  auto back = MakeInProcessCoordinators(3);
  {
    std::vector<std::jthread> ranks;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        auto stager = std::move(*Stager::Make({.budget_bytes = 64 * kMiB}, std::move(back[rank])));
        State state;
        state.tensors.push_back({"w",
                                 DType::kUInt8,
                                 {kRows, kColumns},
                                 WholeBox({kRows, kColumns}),
                                 CudaMemory{memory}});
        AsyncSaveOptions options;
        options.save.check_replicas = CheckReplicas::kFull;
        const AsyncSaveHandle save =
            AsyncSave(std::move(state), dir / "a", options, *stager, *front[rank]);
        EXPECT_TRUE(IsOk(save.done().get()));
        EXPECT_LT(save.done().get()->device_bytes, content.size());
      });
    }
  }
  std::string out(content.size(), '\0');
  auto reader = CheckpointReader::Open(dir / "a");
  ASSERT_TRUE(IsOk(reader));
  const std::vector<TargetTensor> targets{
      {"w", DType::kUInt8, {kRows, kColumns}, WholeBox({kRows, kColumns}), out.data(), {}}};
  ASSERT_TRUE(IsOk((*reader)->ReadTensors(targets, {})));
  EXPECT_TRUE(out == content);
  fake_cuda_free(memory);
}

}  // namespace
}  // namespace varve::device_test
