/// Memory for copies of tensors whose files another library lays out. Asynchronous saves of the
/// engine need none of this (varve/async_save.h); those through PyTorch's planners do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "device/cuda_devices.h"
#include "varve/status.h"
#include "varve/tensor.h"

namespace varve {

/// One piece of memory to copy to `at` bytes into the buffer: bytes, or the elements of a tensor,
/// which are put there in row-major order.
struct HostCopy {
  /// A CUDA device, and the stream that the source was last written to on.
  struct Device {
    int number = 0;
    void* stream = nullptr;
  };
  std::uint64_t at = 0;
  const void* source = nullptr;
  std::uint64_t bytes = 0;
  std::optional<Device> device{};  ///< Where the source is on one.
  /// Of a tensor whose elements do not lie in that order: sizes, steps in elements, and the bytes
  /// of an element.
  Dims sizes{};
  Strides strides{};
  std::uint64_t item = 1;
  std::string name{};  ///< Of the tensor, for errors.
};

/// A mapping that is kept from save to save: the first touch of memory costs 10-60 times its reuse.
/// It is registered with the CUDA driver at the first copy from a device.
class HostBuffer {
 public:
  /// Makes a buffer of `bytes`. Errors: OutOfSpace when the system refuses.
  static Result<std::unique_ptr<HostBuffer>> Make(std::uint64_t bytes);
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  ~HostBuffer();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }

  /// Copies on the calling thread and up to `threads` - 1 others (0: as many as there are cores, at
  /// most 8). Places must not overlap. One call at a time. Errors: InvalidArgument for copies that
  /// do not fit in, or whose sizes are not those of their bytes; those of reading a device.
  Status CopyIn(std::span<const HostCopy> copies, int threads = 0);

 private:
  HostBuffer(std::byte* data, std::uint64_t size) : data_(data), size_(size) {}
  Status PrepareForDevices(std::span<const HostCopy> copies);
  std::byte* data_;
  std::uint64_t size_;
  CudaDevices* devices_ = nullptr;  // Once a copy from a device was asked for.
};

/// Returns why no copy from or to a device can be made in this process; empty where it can.
std::string DeviceProblem();

}  // namespace varve
