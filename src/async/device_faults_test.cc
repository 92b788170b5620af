// Whole saves and loads of tensors on devices beside a driver that fails, lacks functions, or dies,
// and beside a capture. A save ends in a checkpoint with the right bytes, or in an error that names
// the device; a load fills its targets or names it; and the next one is right.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "storages/memory.h"
#include "support/device_memory.h"
#include "support/status_matchers.h"
#include "tensor/box.h"
#include "varve/async_save.h"
#include "varve/checkpoint.h"

namespace varve::device_faults_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::OnDevice;
using test::Random;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// A tensor of floats on a device, or of the host; `columns` first in memory if it is strided.
struct Tensor {
  std::string fqn;
  Dims shape;
  bool strided = false;
  std::string content;  ///< In row-major order.
  std::string memory;
  std::optional<int> device;
};

Tensor MakeTensor(std::string fqn, Dims shape, bool strided, std::optional<int> device) {
  Tensor tensor{std::move(fqn), std::move(shape), strided, {}, {}, device};
  // Small whole numbers, which every cast keeps.
  std::vector<float> numbers(tensor.shape[0] * tensor.shape[1]);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<float>((i * 7 + tensor.fqn.size()) % 1000);
  }
  std::vector<float> turned(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    turned[i % tensor.shape[1] * tensor.shape[0] + i / tensor.shape[1]] = numbers[i];
  }
  const auto bytes_of = [](const std::vector<float>& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  tensor.content = bytes_of(numbers);
  tensor.memory = strided ? bytes_of(turned) : tensor.content;
  return tensor;
}

Strides StridesOf(const Tensor& tensor) {
  return tensor.strided ? Strides{1, static_cast<std::int64_t>(tensor.shape[0])} : Strides{};
}

/// Tensors on two devices and the host, and each way to save and to load them.
class Rig {
 public:
  explicit Rig(std::uint64_t large = 60'000) {
    tensors_.push_back(MakeTensor("large", {large / 100, 100}, false, 0));
    tensors_.push_back(MakeTensor("small", {1, 3}, false, 1));
    tensors_.push_back(MakeTensor("strided", {90, 70}, true, 1));
    tensors_.push_back(MakeTensor("host", {20, 20}, false, std::nullopt));
    tensors_.push_back(MakeTensor("odd", {33, 7}, false, 0));
    for (const Tensor& tensor : tensors_) {
      memory_.push_back(tensor.device ? std::make_unique<OnDevice>(*tensor.device, tensor.memory)
                                      : nullptr);
    }
    EXPECT_TRUE(IsOk(Save(state(), "cached", {}, cached_)));
    EXPECT_TRUE(IsOk(Save(state(), "uncached", {}, uncached_)));
  }

  struct Way {
    const char* name;
    std::function<Status(Rig&)> run;
  };
  static const std::vector<Way>& Ways();

  [[nodiscard]] State state() const {
    State state;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const Tensor& tensor = tensors_[i];
      SourceTensor source{tensor.fqn, DType::kFloat32, tensor.shape, WholeBox(tensor.shape),
                          HostMemory{tensor.content.data()}};
      if (tensor.device) {
        source.source = CudaMemory{memory_[i]->data(), *tensor.device, nullptr, StridesOf(tensor)};
      }
      state.tensors.push_back(std::move(source));
    }
    return state;
  }

  /// Saves; the checkpoint is compared if the save says that there is one.
  Status Saved(Format format) {
    SaveOptions options;
    options.format = format;
    return Compared(
        [&](const std::string& path) { return Save(state(), path, options, cached_).status(); });
  }
  Status Staged(bool overlapped, bool prepared, std::uint64_t budget = 64 * kMiB) {
    const auto stager = std::move(*Stager::Make({.budget_bytes = budget}));
    if (prepared) {
      stager->Prepare(8 * kMiB, 1);
      stager->WaitPrepared();
    }
    AsyncSaveOptions options;
    options.overlapped = overlapped;
    return Compared([&](const std::string& path) {
      const AsyncSaveHandle save = AsyncSave(state(), path, options, *stager, cached_);
      return save.done().get().status();
    });
  }

  /// Loads all tensors to devices; they are compared if the load says that it has filled them.
  Status Loaded(bool cached, bool cast, const std::stop_token& stop = {}) {
    MemoryStorage& storage = cached ? cached_ : uncached_;
    auto reader = CheckpointReader::Open(cached ? "cached" : "uncached", storage);
    if (!reader.ok()) {
      return reader.status();
    }
    std::vector<std::unique_ptr<OnDevice>> targets;
    std::vector<TargetTensor> request;
    for (const Tensor& tensor : tensors_) {
      const int device = tensor.device.value_or(1);
      const std::size_t bytes = tensor.content.size() * (cast ? 2 : 1);
      targets.push_back(std::make_unique<OnDevice>(device, std::string(bytes, '.')));
      const DType dtype = cast ? DType::kFloat64 : DType::kFloat32;
      TargetTensor target{
          tensor.fqn,       dtype, tensor.shape, WholeBox(tensor.shape), targets.back()->data(),
          StridesOf(tensor)};
      target.cuda = OnCuda{device};
      request.push_back(std::move(target));
    }
    LoadOptions options;
    options.cast = cast;
    options.stop = stop;
    const Status status = (*reader)->ReadTensors(request, options).status();
    EXPECT_EQ(fake_cuda_counts().bytes_queued, 0U) << status.message();
    for (std::size_t i = 0; i < tensors_.size() && status.ok(); ++i) {
      EXPECT_TRUE(targets[i]->content() == (cast ? Doubled(tensors_[i]) : tensors_[i].memory))
          << tensors_[i].fqn;
    }
    return status;
  }

 private:
  template <class SaveTo>
  Status Compared(SaveTo save) {
    const std::string path = "saved-" + std::to_string(++saves_);
    Status status = save(path);
    EXPECT_EQ(fake_cuda_counts().bytes_queued, 0U) << status.message();
    auto reader = CheckpointReader::Open(path, cached_);
    EXPECT_EQ(reader.ok(), status.ok()) << status.message();
    for (std::size_t i = 0; i < tensors_.size() && reader.ok(); ++i) {
      const Tensor& tensor = tensors_[i];
      std::string out(tensor.content.size(), '.');
      const TargetTensor target{
          tensor.fqn, DType::kFloat32, tensor.shape, WholeBox(tensor.shape), out.data(), {}};
      EXPECT_TRUE(IsOk((*reader)->ReadTensors({&target, 1}, {})));
      EXPECT_TRUE(out == tensor.content) << tensor.fqn;
    }
    return status;
  }

  /// The memory of a tensor as 64-bit numbers.
  static std::string Doubled(const Tensor& tensor) {
    std::vector<float> numbers(tensor.memory.size() / sizeof(float));
    std::memcpy(numbers.data(), tensor.memory.data(), tensor.memory.size());
    const std::vector<double> doubled(numbers.begin(), numbers.end());
    return {reinterpret_cast<const char*>(doubled.data()), doubled.size() * sizeof(double)};
  }

  std::vector<Tensor> tensors_;
  std::vector<std::unique_ptr<OnDevice>> memory_;
  MemoryStorage cached_;
  MemoryStorage uncached_{{.cached = false}};
  int saves_ = 0;
};

const std::vector<Rig::Way>& Rig::Ways() {
  static const std::vector<Way> ways{
      {"save", [](Rig& rig) { return rig.Saved(Format::kVarve); }},
      {"save as DCP", [](Rig& rig) { return rig.Saved(Format::kDcp); }},
      {"save as a folder of Hugging Face",
       [](Rig& rig) { return rig.Saved(Format::kSafetensors); }},
      {"first asynchronous save", [](Rig& rig) { return rig.Staged(false, false); }},
      {"prepared asynchronous save", [](Rig& rig) { return rig.Staged(false, true); }},
      {"overlapped save", [](Rig& rig) { return rig.Staged(true, true); }},
      {"load from the page cache", [](Rig& rig) { return rig.Loaded(true, false); }},
      {"load", [](Rig& rig) { return rig.Loaded(false, false); }},
      {"load with a cast", [](Rig& rig) { return rig.Loaded(true, true); }},
  };
  return ways;
}

constexpr std::array<const char*, 20> kFunctions{
    "cuModuleLoadData",     "cuModuleGetFunction",
    "cuLaunchKernel",       "cuMemcpyBatchAsync",
    "cuMemcpyDtoHAsync",    "cuMemcpyHtoDAsync",
    "cuMemcpy2DAsync",      "cuEventCreate",
    "cuEventDestroy",       "cuEventRecord",
    "cuEventSynchronize",   "cuStreamWaitEvent",
    "cuStreamSynchronize",  "cuCtxPushCurrent",
    "cuCtxPopCurrent",      "cuDeviceGet",
    "cuDeviceGetAttribute", "cuDeviceGetPCIBusId",
    "cuMemHostRegister",    "cuThreadExchangeStreamCaptureMode"};

TEST(DeviceFaults, ACallThatFailsIsMadeUpForOrAnErrorByNameInEverySaveAndLoad) {
  Rig rig;
  std::set<std::string> failed;
  for (const char* const function : kFunctions) {
    for (const Rig::Way& way : Rig::Ways()) {
      for (const int calls : {0, 1, 4}) {
        SCOPED_TRACE(std::string(way.name) + ", " + function + " " + std::to_string(calls));
        fake_cuda_fail(function, 999, calls);
        const Status status = way.run(rig);
        fake_cuda_fail(function, 0, 0);  // Where it was not called so often.
        EXPECT_EQ(fake_cuda_registered_unmapped(), 0);
        if (!status.ok()) {
          failed.insert(function);
          EXPECT_TRUE(FailsWith(status, StatusCode::kUnavailable,
                                {"CUDA device ", "CUDA_ERROR_UNKNOWN (999)"}));
          EXPECT_TRUE(IsOk(way.run(rig)));
        }
      }
    }
  }
  for (const char* const function : {"cuEventRecord", "cuEventSynchronize", "cuStreamWaitEvent"}) {
    EXPECT_TRUE(failed.contains(function)) << function;
  }
  for (const char* const function : {"cuMemHostRegister", "cuMemcpyBatchAsync"}) {
    EXPECT_FALSE(failed.contains(function)) << function;
  }
}

TEST(DeviceFaults, EverySaveAndLoadIsRightByADriverThatLacksFunctions) {
  Rig rig;
  for (const char* const function :
       {"", "cuThreadExchangeStreamCaptureMode", "cuDeviceGetAttribute", "cuDeviceGetPCIBusId",
        "cuMemcpyBatchAsync", "cuModuleLoadData", "cuMemHostRegister"}) {
    fake_cuda_hide(function);  // And those before.
    for (const Rig::Way& way : Rig::Ways()) {
      EXPECT_TRUE(IsOk(way.run(rig))) << way.name << ", " << function;
    }
  }
  fake_cuda_hide(nullptr);
}

TEST(DeviceFaults, ADeviceThatDiesIsAnErrorByNameInEverySaveAndLoad) {
  Rig rig;
  for (const Rig::Way& way : Rig::Ways()) {
    fake_cuda_poison(700);
    EXPECT_TRUE(FailsWith(way.run(rig), StatusCode::kUnavailable,
                          {"CUDA device ", "CUDA_ERROR_ILLEGAL_ADDRESS (700)", "not this copy"}))
        << way.name;
    fake_cuda_poison(0);
    EXPECT_TRUE(IsOk(way.run(rig))) << way.name;
  }
}

TEST(DeviceFaults, AStateLargerThanTheStagingMemoryFailsByNameToo) {
  Rig rig(7'000'000);
  for (const char* const function : {"cuEventRecord", "cuEventSynchronize", "cuMemHostRegister"}) {
    for (const int calls : {0, 2, 6}) {
      fake_cuda_fail(function, 999, calls);
      const Status status = rig.Staged(false, false, 16 * kMiB);
      fake_cuda_fail(function, 0, 0);
      if (!status.ok()) {
        EXPECT_TRUE(FailsWith(status, StatusCode::kUnavailable,
                              {"CUDA device ", "CUDA_ERROR_UNKNOWN (999)"}));
      }
    }
  }
  EXPECT_TRUE(IsOk(rig.Staged(false, false, 16 * kMiB)));
}

TEST(DeviceFaults, NoSaveAndNoLoadBreaksACaptureOfAnotherThread) {
  Rig rig;
  fake_cuda_begin_capture();
  std::jthread([&] {
    for (const Rig::Way& way : Rig::Ways()) {
      EXPECT_TRUE(IsOk(way.run(rig))) << way.name;
    }
  }).join();
  EXPECT_EQ(fake_cuda_end_capture(), 0);
}

/// Waits until the log has such an entry; a minute at most.
void AwaitFirst(std::string_view what) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  std::size_t seen = 0;
  while (std::chrono::steady_clock::now() < deadline) {
    for (; seen < fake_cuda_log_size(); ++seen) {
      if (std::string_view(fake_cuda_log_at(seen).what) == what) {
        return;
      }
    }
    std::this_thread::yield();
  }
}

/// Returns the place in the log of the copy that began last.
unsigned long long LastBegin() {  // NOLINT(google-runtime-int): fake_cuda_order's.
  unsigned long long last = 0;    // NOLINT(google-runtime-int)
  for (std::size_t i = 0; i < fake_cuda_log_size(); ++i) {
    const FakeCudaLogEntry entry = fake_cuda_log_at(i);
    last = std::string_view(entry.what) == "copy begins" ? entry.order : last;
  }
  return last;
}

TEST(DeviceFaults, ATensorThatIsWrittenToDuringAnOverlappedCopyIsAnErrorThatNamesIt) {
  const OnDevice memory(1, std::string(3 * kMiB, 'a'));
  const Dims shape{3 * kMiB};
  const std::string written(3 * kMiB, 'b');
  MemoryStorage storage;
  const auto stager = std::move(*Stager::Make({.budget_bytes = 32 * kMiB}));
  AsyncSaveOptions options;
  options.overlapped = true;
  for (int attempt = 0; attempt < 20; ++attempt) {
    State state;
    state.tensors.push_back(
        {"w", DType::kUInt8, shape, WholeBox(shape), CudaMemory{memory.data(), 1}});
    fake_cuda_poke(memory.data(), std::string(3 * kMiB, 'a').data(), 3 * kMiB);
    fake_cuda_log_begin();
    fake_cuda_slow_copies(100'000);
    const std::string path = "saved-" + std::to_string(attempt);
    const AsyncSaveHandle save = AsyncSave(std::move(state), path, options, *stager, storage);
    AwaitFirst("copy ends");  // Of the samples.
    fake_cuda_poke(memory.data(), written.data(), written.size());
    const auto poked = fake_cuda_order();
    const Status status = save.staged().get();
    fake_cuda_slow_copies(0);
    if (status.ok() && poked > LastBegin()) {
      continue;  // This thread was too slow.
    }
    EXPECT_TRUE(FailsWith(status, StatusCode::kFailedPrecondition,
                          {"save " + path, "tensor \"w\" was written to"}));
    EXPECT_FALSE(save.done().get().ok());
    EXPECT_TRUE(FailsWith(CheckpointReader::Open(path, storage), StatusCode::kNotFound));
    return;
  }
  FAIL() << "no write came during a copy";
}

TEST(DeviceFaults, ASaveOrALoadThatIsGivenUpHasNoCopyUnderWayWhenItEnds) {
  Rig rig(3'000'000);
  const auto begin = [] {
    fake_cuda_log_begin();
    fake_cuda_slow_copies(20'000);
  };
  MemoryStorage storage;
  const auto stager = std::move(*Stager::Make({.budget_bytes = 64 * kMiB}));
  for (const bool overlapped : {false, true}) {
    begin();
    AsyncSaveOptions options;
    options.overlapped = overlapped;
    std::stop_source stop;
    options.save.stop = stop.get_token();
    const std::jthread canceller([&] {
      AwaitFirst("copy begins");
      stop.request_stop();
    });
    const AsyncSaveHandle save =
        AsyncSave(rig.state(), overlapped ? "b" : "a", options, *stager, storage);
    (void)save.staged().get();
    EXPECT_EQ(fake_cuda_counts().bytes_queued, 0U) << "memory may be freed now";
    const Status status = save.done().get().status();
    EXPECT_TRUE(status.ok() || FailsWith(status, StatusCode::kCancelled));
  }
  const auto given_up = [&](const std::function<Status(const std::stop_token&)>& run) {
    begin();
    std::stop_source stop;
    const std::jthread canceller([&] {
      AwaitFirst("copy begins");
      stop.request_stop();
    });
    const Status status = run(stop.get_token());
    EXPECT_EQ(fake_cuda_counts().bytes_queued, 0U) << "memory may be freed now";
    EXPECT_TRUE(status.ok() ||
                FailsWith(status, StatusCode::kCancelled));  // It may have been late.
  };
  given_up([&](const std::stop_token& stop) {
    SaveOptions options;
    options.stop = stop;
    return Save(rig.state(), "saved", options, storage).status();
  });
  given_up([&](const std::stop_token& stop) { return rig.Loaded(true, false, stop); });
  fake_cuda_slow_copies(0);
  EXPECT_TRUE(IsOk(rig.Staged(false, false)));
}

}  // namespace
}  // namespace varve::device_faults_test
