// The driver's copies between a device and the host.

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "fake_cuda/state.h"

using namespace fake_cuda;  // NOLINT(google-build-using-namespace): the functions are C.

namespace {

/// Rows of bytes that begin `pitch` bytes apart.
struct Rows {
  std::byte* first;
  std::size_t pitch;
};

/// A copy of `height` rows of `width` bytes.
struct Copy {
  bool to_host;
  Rows host;
  Rows device;
  std::size_t width;
  std::size_t height;
};

std::size_t Span(const Copy& copy, const Rows& rows) {
  return (copy.height - 1) * rows.pitch + copy.width;
}

/// Like RegisteredOf, for memory that may have gaps between its rows.
Registered RegisteredRows(const Copy& copy) {
  const Registered all = RegisteredOf(copy.host.first, Span(copy, copy.host));
  if (all != Registered::kInPart) {
    return all;
  }
  const Registered first = RegisteredOf(copy.host.first, copy.width);
  for (std::size_t i = 1; i < copy.height; ++i) {
    if (RegisteredOf(copy.host.first + i * copy.host.pitch, copy.width) != first) {
      return Registered::kInPart;
    }
  }
  return first;
}

/// Takes the time that a call should take. The lock is not held.
void TakeTime() {
  if (const int microseconds = g.call_microseconds; microseconds > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  }
}

/// Checks, counts and queues the copy. The lock is held.
int QueueCopy(const Copy& copy, void* stream) {
  if (copy.width == 0 || copy.height == 0) {
    return 0;
  }
  const int device = t_current.back()->device;
  std::size_t offset = 0;
  const auto memory = Find(copy.device.first, Span(copy, copy.device), &offset);
  if (memory == nullptr || memory->device != device) {
    return kInvalidValue;
  }
  Stream& on = StreamOf(stream, device);
  if (on.device() != device) {
    return kInvalidHandle;
  }
  const Registered registered = RegisteredRows(copy);
  if (registered == Registered::kInPart) {
    return kInvalidValue;
  }
  const std::size_t bytes = copy.width * copy.height;
  const bool pinned = registered == Registered::kWhole;
  if (copy.to_host) {
    (pinned ? g.counts.to_registered : g.counts.to_pageable) += bytes;
  } else {
    (pinned ? g.counts.from_registered : g.counts.from_pageable) += bytes;
  }
  Move move;
  move.parts = {{copy.host.first, bytes}};
  move.bytes = bytes;
  move.work = [copy, memory, offset] {
    for (std::size_t i = 0; i < copy.height; ++i) {
      std::byte* const host = copy.host.first + i * copy.host.pitch;
      std::byte* const content = memory->content.data() + offset + i * copy.device.pitch;
      std::memcpy(copy.to_host ? host : content, copy.to_host ? content : host, copy.width);
    }
  };
  QueueMove(&on, std::move(move));
  return 0;
}

/// CUmemcpyAttributes of cuda.h.
struct MemcpyAttributes {
  int source_access_order;
  int source_location[2];
  int target_location[2];
  unsigned flags;
};
static_assert(sizeof(MemcpyAttributes) == 24);

/// Returns whether each copy of a batch has attributes, and those are known ones.
bool AreAttributes(const MemcpyAttributes* attributes, const std::size_t* first_copies,
                   std::size_t count, std::size_t copies) {
  constexpr int kMostOrder = 3;  // CU_MEMCPY_SRC_ACCESS_ORDER_ANY
  for (std::size_t i = 0; i < count; ++i) {
    const bool ascends = i == 0 ? first_copies[0] == 0 : first_copies[i] > first_copies[i - 1];
    if (!ascends || first_copies[i] >= copies || attributes[i].source_access_order < 1 ||
        attributes[i].source_access_order > kMostOrder) {
      return false;
    }
  }
  return count > 0;
}

/// Queues one copy of a batch, which must be between a device and registered host memory.
int QueueOfBatch(unsigned long long target, unsigned long long source, std::size_t bytes,
                 void* stream) {
  auto* const to = reinterpret_cast<std::byte*>(target);
  auto* const from = reinterpret_cast<std::byte*>(source);
  std::size_t offset = 0;
  const bool to_host = Find(from, bytes, &offset) != nullptr;
  if (bytes == 0 || to_host == (Find(to, bytes, &offset) != nullptr) ||
      RegisteredOf(to_host ? to : from, bytes) != Registered::kWhole) {
    return kInvalidValue;
  }
  return QueueCopy({.to_host = to_host,
                    .host = {to_host ? to : from, bytes},
                    .device = {to_host ? from : to, bytes},
                    .width = bytes,
                    .height = 1},
                   stream);
}

/// CUDA_MEMCPY2D of cuda.h.
struct Memcpy2d {
  std::size_t source_x;
  std::size_t source_y;
  unsigned source_type;
  const void* source_host;
  unsigned long long source_device;
  void* source_array;
  std::size_t source_pitch;
  std::size_t target_x;
  std::size_t target_y;
  unsigned target_type;
  void* target_host;
  unsigned long long target_device;
  void* target_array;
  std::size_t target_pitch;
  std::size_t width;
  std::size_t height;
};
static_assert(sizeof(Memcpy2d) == 128);

constexpr unsigned kHost = 1;
constexpr unsigned kDevice = 2;
constexpr std::size_t kMostPitch = 0x7fffffff;  // CU_DEVICE_ATTRIBUTE_MAX_PITCH of all devices.

std::byte* FirstByte(unsigned type, const void* host, unsigned long long device, std::size_t x,
                     std::size_t y, std::size_t pitch) {
  auto* const base = type == kHost ? const_cast<void*>(host) : reinterpret_cast<void*>(device);
  return static_cast<std::byte*>(base) + y * pitch + x;
}

}  // namespace

extern "C" {

FAKE_CUDA_API int cuMemcpyDtoHAsync_v2(void* target, unsigned long long source, std::size_t bytes,
                                       void* stream) {
  TakeTime();
  const std::scoped_lock lock(g.mutex);
  const int error = BeginInContext("cuMemcpyDtoHAsync");
  return error != 0 ? error
                    : QueueCopy({.to_host = true,
                                 .host = {static_cast<std::byte*>(target), bytes},
                                 .device = {reinterpret_cast<std::byte*>(source), bytes},
                                 .width = bytes,
                                 .height = 1},
                                stream);
}

FAKE_CUDA_API int cuMemcpyHtoDAsync_v2(unsigned long long target, const void* source,
                                       std::size_t bytes, void* stream) {
  TakeTime();
  const std::scoped_lock lock(g.mutex);
  const int error = BeginInContext("cuMemcpyHtoDAsync");
  auto* const host = static_cast<std::byte*>(const_cast<void*>(source));
  return error != 0 ? error
                    : QueueCopy({.to_host = false,
                                 .host = {host, bytes},
                                 .device = {reinterpret_cast<std::byte*>(target), bytes},
                                 .width = bytes,
                                 .height = 1},
                                stream);
}

FAKE_CUDA_API int cuMemcpy2DAsync_v2(const void* parameters, void* stream) {
  const auto* const copy = static_cast<const Memcpy2d*>(parameters);
  const std::scoped_lock lock(g.mutex);
  const int error = BeginInContext("cuMemcpy2DAsync");
  if (error != 0) {
    return error;
  }
  const bool to_host = copy->source_type == kDevice && copy->target_type == kHost;
  const bool to_device = copy->source_type == kHost && copy->target_type == kDevice;
  const auto fits = [&](std::size_t x, std::size_t pitch) {
    return copy->width <= pitch && x <= pitch - copy->width && pitch <= kMostPitch;
  };
  if ((!to_host && !to_device) || !fits(copy->source_x, copy->source_pitch) ||
      !fits(copy->target_x, copy->target_pitch)) {
    return kInvalidValue;
  }
  const Rows source{FirstByte(copy->source_type, copy->source_host, copy->source_device,
                              copy->source_x, copy->source_y, copy->source_pitch),
                    copy->source_pitch};
  const Rows target{FirstByte(copy->target_type, copy->target_host, copy->target_device,
                              copy->target_x, copy->target_y, copy->target_pitch),
                    copy->target_pitch};
  return QueueCopy({.to_host = to_host,
                    .host = to_host ? target : source,
                    .device = to_host ? source : target,
                    .width = copy->width,
                    .height = copy->height},
                   stream);
}

/// The copies before one that is refused are made.
FAKE_CUDA_API int cuMemcpyBatchAsync(unsigned long long* targets, unsigned long long* sources,
                                     std::size_t* sizes, std::size_t count, void* given,
                                     std::size_t* first_copies, std::size_t attribute_count,
                                     std::size_t* failed, void* stream) {
  const auto* const attributes = static_cast<const MemcpyAttributes*>(given);
  const std::scoped_lock lock(g.mutex);
  *failed = SIZE_MAX;
  const int error = BeginInContext("cuMemcpyBatchAsync");
  if (error != 0) {
    return error;
  }
  // A batch on the default stream is refused.
  if (count == 0 || stream == nullptr ||
      !AreAttributes(attributes, first_copies, attribute_count, count)) {
    return kInvalidValue;
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (const int refused = QueueOfBatch(targets[i], sources[i], sizes[i], stream); refused != 0) {
      *failed = i;
      return refused;
    }
  }
  ++g.counts.batches;
  return 0;
}

}  // extern "C"
