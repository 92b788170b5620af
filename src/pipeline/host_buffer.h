/// Memory for copies of tensors whose files another library lays out. Asynchronous saves of the
/// engine need none of this (varve/async_save.h); those through PyTorch's planners do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "varve/status.h"

namespace varve {

/// One piece of memory to copy to `at` bytes into the buffer.
struct HostCopy {
  std::uint64_t at = 0;
  const void* source = nullptr;
  std::uint64_t bytes = 0;
};

/// A mapping that is kept from save to save: the first touch of memory costs 10-60 times its reuse.
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
  /// most 8). Places must not overlap. Errors: InvalidArgument for copies that do not fit in.
  Status CopyIn(std::span<const HostCopy> copies, int threads = 0) const;

 private:
  HostBuffer(std::byte* data, std::uint64_t size) : data_(data), size_(size) {}
  std::byte* data_;
  std::uint64_t size_;
};

}  // namespace varve
