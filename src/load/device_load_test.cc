#include <gtest/gtest.h>

#include "storages/memory.h"
#include "support/device_memory.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "tensor/box.h"
#include "varve/checkpoint.h"

namespace varve::device_load_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::OnDevice;
using test::Random;
using test::TempDir;

constexpr std::uint64_t kRows = 700;
constexpr std::uint64_t kColumns = 1100;
const Dims kShape{kRows, kColumns};

/// A checkpoint with one matrix of 32-bit numbers, all of which are whole and below 2^20.
class Saved {
 public:
  Saved() : values_(kRows * kColumns) {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      values_[i] = static_cast<float>(i);
    }
    State state;
    state.tensors.push_back(
        {"w", DType::kFloat32, kShape, WholeBox(kShape), HostMemory{values_.data()}});
    EXPECT_TRUE(IsOk(Save(state, dir_ / "a")));
    reader_ = std::move(*CheckpointReader::Open(dir_ / "a"));
  }
  CheckpointReader& reader() { return *reader_; }
  [[nodiscard]] std::string bytes() const { return BytesOf(values_); }
  /// The bytes of `box`, in the order of its columns if `transposed`.
  template <class Number>
  [[nodiscard]] std::string BytesOfBox(const Box& box, bool transposed) const {
    std::vector<Number> numbers(Volume(box.sizes));
    for (std::uint64_t i = 0; i < box.sizes[0]; ++i) {
      for (std::uint64_t j = 0; j < box.sizes[1]; ++j) {
        numbers[transposed ? j * box.sizes[0] + i : i * box.sizes[1] + j] =
            static_cast<Number>(values_[(box.offsets[0] + i) * kColumns + box.offsets[1] + j]);
      }
    }
    return BytesOf(numbers);
  }

 private:
  template <class Number>
  static std::string BytesOf(const std::vector<Number>& numbers) {
    return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
  }
  const TempDir dir_;
  std::vector<float> values_;
  std::unique_ptr<CheckpointReader> reader_;
};

TargetTensor Target(const OnDevice& memory, const Box& box, bool transposed, DType dtype) {
  TargetTensor target{"w", dtype, kShape, box, memory.data(), {}};
  if (transposed) {
    target.strides = {1, static_cast<std::int64_t>(box.sizes[0])};
  }
  target.cuda = OnCuda{memory.device()};
  return target;
}

TEST(DeviceLoad, FillsTargetsOfTwoDevicesAndOfTheHostTogether) {
  Saved saved;
  const Box part{{30, 7}, {600, 900}};
  const OnDevice zero(0, std::string(saved.bytes().size(), '.'));
  const OnDevice one(1, std::string(Volume(part.sizes) * 4, '.'));
  std::string host(saved.bytes().size(), '.');
  const std::vector<TargetTensor> targets{
      Target(zero, WholeBox(kShape), true, DType::kFloat32),
      Target(one, part, false, DType::kFloat32),
      {"w", DType::kFloat32, kShape, WholeBox(kShape), host.data(), {}}};
  ASSERT_TRUE(IsOk(saved.reader().ReadTensors(targets, {})));
  EXPECT_TRUE(zero.content() == saved.BytesOfBox<float>(WholeBox(kShape), true));
  EXPECT_TRUE(one.content() == saved.BytesOfBox<float>(part, false));
  EXPECT_TRUE(host == saved.bytes());
}

TEST(DeviceLoad, ConvertsOnTheWay) {
  Saved saved;
  const Box part{{30, 7}, {600, 900}};
  for (const bool transposed : {false, true}) {
    const OnDevice memory(1, std::string(Volume(part.sizes) * 8, '.'));
    const std::vector<TargetTensor> targets{Target(memory, part, transposed, DType::kFloat64)};
    LoadOptions options;
    options.cast = true;
    ASSERT_TRUE(IsOk(saved.reader().ReadTensors(targets, options)));
    EXPECT_TRUE(memory.content() == saved.BytesOfBox<double>(part, transposed));
  }
}

TEST(DeviceLoad, TheReportCountsWhatWasConvertedAndWhatWasNot) {
  Saved saved;
  const OnDevice same(0, std::string(saved.bytes().size(), '.'));
  const OnDevice wider(1, std::string(2 * saved.bytes().size(), '.'));
  std::string host(2 * saved.bytes().size(), '.');
  LoadRequest request;
  request.targets = {Target(same, WholeBox(kShape), false, DType::kFloat32),
                     Target(wider, WholeBox(kShape), true, DType::kFloat64),
                     {"w", DType::kFloat64, kShape, WholeBox(kShape), host.data(), {}}};
  LoadOptions options;
  options.cast = true;
  const auto report = Load(saved.reader(), request, options);
  ASSERT_TRUE(IsOk(report));
  EXPECT_EQ(report->device_bytes, 3 * saved.bytes().size());
}

TEST(DeviceLoad, ComesAfterTheWorkThatIsQueuedOnTheTargetsStream) {
  Saved saved;
  const OnDevice memory(0, std::string(saved.bytes().size(), '.'));
  void* const stream = fake_cuda_stream(0);
  fake_cuda_fill(0, stream, memory.data(), saved.bytes().size(), 0xEE, 100);
  TargetTensor target = Target(memory, WholeBox(kShape), false, DType::kFloat32);
  target.cuda->stream = stream;
  ASSERT_TRUE(IsOk(saved.reader().ReadTensors({&target, 1}, {})));
  EXPECT_TRUE(memory.content() == saved.bytes());
}

TEST(DeviceLoad, ADeviceThatFailsIsNamedWithTheTensor) {
  Saved saved;
  const OnDevice memory(0, std::string(saved.bytes().size(), '.'));
  const std::vector<TargetTensor> targets{Target(memory, WholeBox(kShape), false, DType::kFloat32)};
  fake_cuda_fail("cuEventSynchronize", 719, 0);
  EXPECT_TRUE(FailsWith(saved.reader().ReadTensors(targets, {}), StatusCode::kUnavailable,
                        {"tensor \"w\"", "bytes to CUDA device 0"}));
  TargetTensor nowhere = targets.front();
  nowhere.cuda->device = 7;
  EXPECT_TRUE(FailsWith(saved.reader().ReadTensors({&nowhere, 1}, {}), StatusCode::kUnavailable,
                        {"tensor \"w\"", "CUDA device 7"}));
  ASSERT_TRUE(IsOk(saved.reader().ReadTensors(targets, {})));
  EXPECT_TRUE(memory.content() == saved.bytes());
}

TEST(DeviceLoad, ADamagedBlockIsAnErrorThatNamesTheTensorsThatHaveNewBytes) {
  constexpr std::uint64_t kRun = std::uint64_t{20} << 20;  // Several blocks.
  MemoryStorage storage;
  const std::string content = Random(4).Bytes(kRun);
  const std::string other = Random(5).Bytes(kRun);
  const Dims shape{kRun};
  State state;
  for (const auto& [fqn, memory] : {std::pair("a", &content), std::pair("b", &other)}) {
    state.tensors.push_back(
        {fqn, DType::kUInt8, shape, WholeBox(shape), HostMemory{memory->data()}});
  }
  ASSERT_TRUE(IsOk(Save(state, "saved", {}, storage)));
  auto reader = CheckpointReader::Open("saved", storage);
  ASSERT_TRUE(IsOk(reader));
  const std::string file = "saved/" + (*reader)->metadata().files.front().name;
  const auto stored = ReadWholeFile(storage, file, 4 * kRun);
  ASSERT_TRUE(IsOk(stored));
  std::string damaged = *stored;
  damaged[2 * kRun] = static_cast<char>(damaged[2 * kRun] ^ 1);  // In the last block of "b".
  ASSERT_TRUE(IsOk(storage.Remove(file)));
  ASSERT_TRUE(IsOk(WriteWholeFile(storage, file, damaged)));
  const OnDevice a(0, std::string(kRun, '.'));
  const OnDevice b(1, std::string(kRun, '.'));
  std::vector<TargetTensor> targets;
  for (const auto& [fqn, memory] : {std::pair("a", &a), std::pair("b", &b)}) {
    TargetTensor target{fqn, DType::kUInt8, shape, WholeBox(shape), memory->data(), {}};
    target.cuda = OnCuda{memory->device()};
    targets.push_back(std::move(target));
  }
  EXPECT_TRUE(FailsWith((*reader)->ReadTensors(targets, {.io_threads = 1}), StatusCode::kDataLoss,
                        {file, "tensor \"b\"", "partly written: tensor \"a\", tensor \"b\""}));
  EXPECT_TRUE(a.content() == content);
  EXPECT_EQ(b.content().back(), '.') << "a damaged block reaches no tensor";
}

}  // namespace
}  // namespace varve::device_load_test
