// The pipelines with tensors on devices. That work overlaps is told from the order of events: a
// file of the test does not let go on what must overlap with something else.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/checksum.h"
#include "pipeline/file_reader.h"
#include "pipeline/file_writer.h"
#include "pipeline/staged_file.h"
#include "support/device_memory.h"
#include "support/fake_file.h"
#include "support/status_matchers.h"
#include "tensor/box.h"

namespace varve::device_pipeline_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::MemoryFile;
using test::OnDevice;
using test::Random;

constexpr std::uint64_t kSum = std::uint64_t{1} << 20;

using Order = unsigned long long;  // NOLINT(google-runtime-int): fake_cuda_order's.
struct Span {
  Order begin = 0;
  Order end = 0;
};

/// Returns the copies and kernels of the log that have ended.
std::vector<Span> EndedCopies() {
  std::vector<Span> spans;
  std::map<unsigned long long, Order> begun;  // NOLINT(google-runtime-int): By host address.
  for (std::size_t i = 0; i < fake_cuda_log_size(); ++i) {
    const FakeCudaLogEntry entry = fake_cuda_log_at(i);
    if (std::string_view(entry.what) == "copy begins") {
      begun[entry.host_address] = entry.order;
    } else if (std::string_view(entry.what) == "copy ends") {
      spans.push_back({begun[entry.host_address], entry.order});
    }
  }
  return spans;
}

/// Waits until a copy has ended that began after `begin`; a minute at most.
void AwaitCopyAfter(Order begin) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  const auto is_there = [&] {
    const std::vector<Span> copies = EndedCopies();
    return std::any_of(copies.begin(), copies.end(),
                       [&](const Span& copy) { return copy.begin > begin; });
  };
  while (!is_there() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
}

/// Returns whether a copy of the log began and ended within the span.
bool SomeCopyIsWithin(const Span& span) {
  const std::vector<Span> copies = EndedCopies();
  return std::any_of(copies.begin(), copies.end(), [&](const Span& copy) {
    return span.begin < copy.begin && copy.end < span.end;
  });
}

/// The tensors of a file, all on devices.
class DeviceFile {
 public:
  /// Adds a row-major tensor of bytes.
  void Add(int device, std::string content) {
    const Box box = WholeBox({content.size()});
    Add(device, content, content, box, {1}, 1);
  }
  /// Adds a matrix that is transposed on the device.
  void AddTransposed(int device, std::uint64_t rows, std::uint64_t columns, Random* random) {
    const std::string content = random->Bytes(rows * columns * 4);
    std::string on_device(content.size(), '\0');
    for (std::uint64_t i = 0; i < rows; ++i) {
      for (std::uint64_t j = 0; j < columns; ++j) {
        on_device.replace((j * rows + i) * 4, 4, content, (i * columns + j) * 4, 4);
      }
    }
    Add(device, content, on_device, WholeBox({rows, columns}), {1, static_cast<std::int64_t>(rows)},
        4);
  }

  std::vector<FileSegment> segments;
  std::vector<ReadTarget> targets;  ///< In a file that begins with the image.
  std::vector<std::unique_ptr<OnDevice>> memory;
  std::vector<std::string> on_devices;
  std::string image;

  [[nodiscard]] std::vector<std::uint32_t> Crcs() const {
    std::vector<std::uint32_t> crcs;
    for (std::uint64_t at = 0; at < image.size(); at += kSum) {
      crcs.push_back(Crc32c(AsByteSpan(std::string_view(image).substr(at, kSum))));
    }
    return crcs;
  }
  /// Overwrites all memory on the devices.
  void Clear() const {
    for (std::size_t i = 0; i < memory.size(); ++i) {
      const std::string dots(on_devices[i].size(), '.');
      fake_cuda_poke(memory[i]->data(), dots.data(), dots.size());
    }
  }

 private:
  void Add(int device, const std::string& content, const std::string& on_device, const Box& box,
           const Strides& strides, std::uint64_t item) {
    memory.push_back(std::make_unique<OnDevice>(device, on_device));
    on_devices.push_back(on_device);
    const Region region(box, {memory.back()->data(), box, strides, item}, box);
    FileSegment segment;
    segment.bytes = content.size();
    segment.region = region;
    segment.owner = static_cast<std::uint32_t>(segments.size());
    segment.device = device;
    segments.push_back(std::move(segment));
    targets.push_back({image.size(), region, static_cast<std::uint32_t>(targets.size()), device});
    image += content;
  }
};

DeviceFile ManyTensors(std::uint64_t seed) {
  Random random(seed);
  DeviceFile file;
  for (int i = 0; i < 40; ++i) {
    file.Add(i % 2, random.Bytes(1 + random.Below(i % 5 == 0 ? 3'000'000 : 3000)));
    if (i % 8 == 0) {
      file.AddTransposed(i % 2, 300, random.Between(100, 500), &random);
    }
  }
  return file;
}

/// A file of strings whose reads a test can hold up.
class StringFile final : public ReadableFile {
 public:
  explicit StringFile(std::string content, bool cached = false)
      : content_(std::move(content)), cached_(cached) {}
  [[nodiscard]] std::uint64_t size() const override { return content_.size(); }
  Status ReadAt(std::uint64_t offset, std::span<const std::span<std::byte>> parts) override {
    for (const std::span<std::byte> part : parts) {
      std::memcpy(part.data(), content_.data() + offset, part.size());
      offset += part.size();
    }
    return Status::Ok();
  }
  Status ReadUncached(std::uint64_t offset, std::byte* buffer, std::uint64_t size,
                      std::uint64_t /*capacity*/) override {
    const Order begin = fake_cuda_order();
    if (on_read) {
      on_read(begin);
    }
    std::memcpy(buffer, content_.data() + offset, size);
    return Status::Ok();
  }
  [[nodiscard]] bool IsCached(std::uint64_t /*offset*/, std::uint64_t /*size*/) override {
    return cached_;
  }

  std::function<void(Order begin)> on_read;  ///< Called before a read that is not cached.

 private:
  std::string content_;
  bool cached_;
};

/// Reads the tensors of `from`; `crcs` are those of its image.
ReadOutcome Read(StringFile* file, const DeviceFile& from, const std::vector<std::uint32_t>& crcs,
                 BufferPool& pool, int threads) {
  std::vector<FileReads> reads{{file, "data", {0, file->size(), kSum}, crcs, from.targets, {}}};
  ReadFilesOptions options;
  options.threads = threads;
  options.owner_name = [](std::uint32_t owner) { return "tensor " + std::to_string(owner); };
  return ReadFiles(reads, static_cast<std::uint32_t>(from.targets.size()), pool, options);
}

void ExpectOnDevices(const DeviceFile& file) {
  for (std::size_t i = 0; i < file.memory.size(); ++i) {
    ASSERT_TRUE(file.memory[i]->content() == file.on_devices[i]) << "tensor " << i;
  }
}

TEST(DevicePipeline, WritesTensorsOfDevicesByRegisteredBlocks) {
  const DeviceFile from = ManyTensors(1);
  BufferPool pool(4 * kPoolBlockBytes);
  MemoryFile file;
  const auto written = WriteSegments(file, 0, from.segments, pool, {.block_bytes = kSum});
  ASSERT_TRUE(IsOk(written));
  EXPECT_TRUE(std::string_view(file.content).substr(0, from.image.size()) == from.image);
  EXPECT_EQ(written->block_crc32c, from.Crcs());
  EXPECT_EQ(written->device_bytes, from.image.size());
  EXPECT_EQ(written->pageable_bytes, 0U);
}

TEST(DevicePipeline, CopiesABlockFromADeviceWhileAnEarlierOneIsWritten) {
  /// Holds the first write up until a block has come from the device meanwhile.
  class HeldFile final : public WritableFile {
   public:
    Status WriteAt(std::uint64_t offset, std::span<const std::byte> /*data*/) override {
      const Order begin = fake_cuda_order();
      if (offset == 0) {
        AwaitCopyAfter(begin);
        first = {begin, fake_cuda_order()};
      }
      return Status::Ok();
    }
    Status Sync(std::uint64_t /*size*/) override { return Status::Ok(); }
    [[nodiscard]] bool direct() const override { return false; }
    Span first;
  };
  DeviceFile from;
  from.Add(0, std::string(12 * kPoolBlockBytes, 'x'));  // More than can be queued to be written.
  HeldFile file;
  BufferPool pool(8 * kPoolBlockBytes);
  fake_cuda_log_begin();
  ASSERT_TRUE(IsOk(WriteSegments(file, 0, from.segments, pool, {.writes_in_flight = 2})));
  EXPECT_TRUE(SomeCopyIsWithin(file.first)) << "nothing was copied meanwhile";
}

TEST(DevicePipeline, NamesTheTensorsThatADeviceDidNotGive) {
  const DeviceFile from = ManyTensors(3);
  BufferPool pool(4 * kPoolBlockBytes);
  MemoryFile file;
  WriteSegmentsOptions options;
  options.name_of = [](std::uint32_t owner) { return "t" + std::to_string(owner); };
  fake_cuda_fail("cuEventSynchronize", 719, 0);
  EXPECT_TRUE(FailsWith(WriteSegments(file, 0, from.segments, pool, options),
                        StatusCode::kUnavailable, {"tensors \"t0\" to \"t", "CUDA device 0"}));
  EXPECT_EQ(fake_cuda_counts().bytes_queued, 0U);
}

TEST(DevicePipeline, StagesByWayOfRegisteredBlocksUntilStagingMemoryIs) {
  const DeviceFile from = ManyTensors(4);
  BufferPool through(4 * kPoolBlockBytes);
  const auto pool = std::move(*StagingPool::Make(8 * kPoolBlockBytes));
  for (const bool registered : {false, true}) {
    if (registered) {
      pool->Prepare(8 * kPoolBlockBytes, 0);
      pool->WaitPrepared();
    }
    for (int way = 0; way < 4; ++way) {
      BufferPool* const by = way % 2 == 0 ? &through : nullptr;
      const bool sums_later = way >= 2;
      StagedFile staged(from.segments, kSum,
                        std::move(*pool->Reserve(StagedFile::BlocksFor(from.segments, kSum), {})));
      staged.SetUpDevices({}, by, sums_later);
      ASSERT_TRUE(IsOk(staged.Fill(4, {})));
      staged.SumInBackground();
      const DeviceFetch& fetch = staged.copier().fetch();
      EXPECT_EQ(fetch.device_bytes(), from.image.size());
      EXPECT_EQ(fetch.pageable_bytes(), registered || by != nullptr ? 0 : from.image.size());
      MemoryFile file;
      const auto written = staged.WriteTo(file, 0, {.block_bytes = kSum});
      ASSERT_TRUE(IsOk(written));
      EXPECT_TRUE(std::string_view(file.content).substr(0, from.image.size()) == from.image);
      EXPECT_EQ(written->block_crc32c, from.Crcs());
    }
  }
}

TEST(DevicePipeline, FindsAWriteToWhatWasSummedAfterTheCopy) {
  const DeviceFile from = ManyTensors(11);
  const auto pool = std::move(*StagingPool::Make(8 * kPoolBlockBytes));
  auto memory = std::move(*pool->Reserve(StagedFile::BlocksFor(from.segments, kSum), {}));
  std::byte* const first = memory.blocks().front();
  StagedFile staged(from.segments, kSum, std::move(memory));
  staged.SetUpDevices({}, nullptr, true);
  ASSERT_TRUE(IsOk(staged.Fill(2, {})));
  staged.SumInBackground();
  MemoryFile whole;
  ASSERT_TRUE(IsOk(staged.WriteTo(whole, 0, {.block_bytes = kSum})));  // The sums are made.
  first[100] ^= std::byte{1};
  MemoryFile file;
  EXPECT_TRUE(FailsWith(staged.WriteTo(file, 0, {.block_bytes = kSum}), StatusCode::kDataLoss,
                        {"staged bytes [0, "}));
}

TEST(DevicePipeline, AFileWhoseSumsAreStillMadeMayBeDestroyed) {
  DeviceFile from;
  from.Add(0, std::string(6 * kPoolBlockBytes, 'x'));
  const auto pool = std::move(*StagingPool::Make(8 * kPoolBlockBytes));
  for (int i = 0; i < 4; ++i) {
    StagedFile staged(from.segments, kSum,
                      std::move(*pool->Reserve(StagedFile::BlocksFor(from.segments, kSum), {})));
    staged.SetUpDevices({}, nullptr, true);
    ASSERT_TRUE(IsOk(staged.Fill(2, {})));
    staged.SumInBackground();
  }
}

TEST(DevicePipeline, StagesStraightIntoPageableMemoryWhereTheDriverRegistersNone) {
  const DeviceFile from = ManyTensors(10);
  fake_cuda_limit_registration(1, 0);
  BufferPool through(4 * kPoolBlockBytes);
  const auto pool = std::move(*StagingPool::Make(8 * kPoolBlockBytes));
  StagedFile staged(from.segments, kSum,
                    std::move(*pool->Reserve(StagedFile::BlocksFor(from.segments, kSum), {})));
  staged.SetUpDevices({}, &through);
  ASSERT_TRUE(IsOk(staged.Fill(4, {})));
  MemoryFile direct;
  const auto written = WriteSegments(direct, 0, from.segments, through, {.block_bytes = kSum});
  fake_cuda_limit_registration(0, 0);
  ASSERT_TRUE(IsOk(written));
  EXPECT_EQ(staged.copier().fetch().pageable_bytes(), from.image.size());
  EXPECT_EQ(written->pageable_bytes, from.image.size());
  MemoryFile file;
  ASSERT_TRUE(IsOk(staged.WriteTo(file, 0, {.block_bytes = kSum})));
  for (const MemoryFile* whole : {&file, &direct}) {
    EXPECT_TRUE(std::string_view(whole->content).substr(0, from.image.size()) == from.image);
  }
}

TEST(DevicePipeline, ReadsTensorsToDevicesFromTheCacheAndFromTheDisk) {
  for (const bool cached : {false, true}) {
    const DeviceFile to = ManyTensors(5);
    to.Clear();
    const FakeCudaCounts before = fake_cuda_counts();
    StringFile file(to.image, cached);
    BufferPool pool(4 * kPoolBlockBytes);
    const ReadOutcome outcome = Read(&file, to, to.Crcs(), pool, 3);
    ASSERT_TRUE(IsOk(outcome.status));
    EXPECT_EQ(outcome.device_bytes, to.image.size());
    EXPECT_EQ(fake_cuda_counts().from_pageable, before.from_pageable);
    ExpectOnDevices(to);
  }
}

TEST(DevicePipeline, CopiesABlockToADeviceWhileAnotherOneIsRead) {
  Random random(6);
  DeviceFile to;
  to.Add(0, random.Bytes(4 * kPoolBlockBytes));
  to.Clear();
  StringFile file(to.image);
  std::atomic<bool> is_held{false};
  Span first;
  file.on_read = [&](Order begin) {
    if (!is_held.exchange(true)) {  // The other thread reads and copies what follows.
      AwaitCopyAfter(begin);
      first = {begin, fake_cuda_order()};
    }
  };
  BufferPool pool(4 * kPoolBlockBytes);
  fake_cuda_log_begin();
  ASSERT_TRUE(IsOk(Read(&file, to, to.Crcs(), pool, 2).status));
  EXPECT_TRUE(SomeCopyIsWithin(first)) << "nothing was copied meanwhile";
  ExpectOnDevices(to);
}

TEST(DevicePipeline, UsesABlockAgainOnlyWhenItsCopyHasEnded) {
  Random random(7);
  DeviceFile to;
  to.Add(0, random.Bytes(8 * kPoolBlockBytes));
  to.Clear();
  StringFile file(to.image);
  BufferPool pool(2 * kPoolBlockBytes);
  fake_cuda_slow_copies(5000);
  const ReadOutcome outcome = Read(&file, to, to.Crcs(), pool, 4);
  fake_cuda_slow_copies(0);
  ASSERT_TRUE(IsOk(outcome.status));
  EXPECT_EQ(fake_cuda_counts().bytes_queued, 0U);
  ExpectOnDevices(to);
}

TEST(DevicePipeline, ADamagedBlockReachesNoDevice) {
  for (const bool cached : {false, true}) {
    Random random(8);
    DeviceFile to;
    to.Add(0, random.Bytes(3 * kSum));  // The last of its checksum blocks is damaged.
    to.Add(1, random.Bytes(kSum));
    to.Clear();
    std::string damaged = to.image;
    damaged[2 * kSum + 5] = static_cast<char>(damaged[2 * kSum + 5] ^ 1);
    StringFile file(damaged, cached);
    BufferPool pool(4 * kPoolBlockBytes);
    const ReadOutcome outcome = Read(&file, to, to.Crcs(), pool, 2);
    EXPECT_TRUE(FailsWith(outcome.status, StatusCode::kDataLoss, {"checksum", "tensor 0"}));
    EXPECT_EQ(outcome.touched, (std::vector<bool>{false, false}));
    EXPECT_EQ(to.memory[0]->content(), std::string(3 * kSum, '.'));
    EXPECT_EQ(to.memory[1]->content(), std::string(kSum, '.'));
  }
}

TEST(DevicePipeline, ADeviceThatTakesNothingFailsTheReadByName) {
  const DeviceFile to = ManyTensors(9);
  StringFile file(to.image);
  BufferPool pool(4 * kPoolBlockBytes);
  fake_cuda_fail("cuEventRecord", 719, 2);
  const ReadOutcome outcome = Read(&file, to, to.Crcs(), pool, 2);
  EXPECT_TRUE(FailsWith(outcome.status, StatusCode::kUnavailable,
                        {"data, up to tensor ", "to CUDA device ", "CUDA_ERROR_LAUNCH_FAILED"}));
  EXPECT_EQ(fake_cuda_counts().bytes_queued, 0U);
}

}  // namespace
}  // namespace varve::device_pipeline_test
