/// A CUDA driver for machines without a device: a library named libcuda.so.1 with the functions
/// that Varve calls, two devices in host memory, and streams that are threads. It refuses calls
/// that a real driver leaves undefined, so that a test can fail: a call without a context, an event
/// or a copy on a stream of another device, a device's memory read by the process itself (it is not
/// readable). It shows neither the speed of a device nor rules that it does not implement.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(FAKE_CUDA_BUILD)
#define FAKE_CUDA_API __attribute__((visibility("default")))
#else
#define FAKE_CUDA_API
#endif

extern "C" {

/// Returns zeroed memory of a device. The address is good for copies by the driver only.
FAKE_CUDA_API void* fake_cuda_alloc(int device, std::size_t bytes);
/// Waits for nothing, like a caching allocator: what is still to be copied reads as 0xDD then.
FAKE_CUDA_API void fake_cuda_free(void* memory);
/// Writes at once, and reads, without any stream.
FAKE_CUDA_API void fake_cuda_poke(void* memory, const void* from, std::size_t bytes);

/// Returns a stream as a training has them; never destroyed.
FAKE_CUDA_API void* fake_cuda_stream(int device);
/// Queues a kernel: after `milliseconds` of work it fills memory with `value`. A null stream is the
/// device's default one.
FAKE_CUDA_API void fake_cuda_fill(int device, void* stream, void* memory, std::size_t bytes,
                                  std::uint8_t value, int milliseconds);

/// Makes the function of that name (as in the library) return `error` once, after `calls` more
/// calls.
FAKE_CUDA_API void fake_cuda_fail(const char* function, int error, int calls);
/// Makes each copy take at least so long.
FAKE_CUDA_API void fake_cuda_slow_copies(int microseconds);

struct FakeCudaCounts {
  std::uint64_t copies;            ///< That have been made.
  std::uint64_t copies_under_way;  ///< That are queued.
  std::uint64_t most_at_once;      ///< Copies that were ever queued at one time.
  std::uint64_t registered_bytes;  ///< Now.
  std::uint64_t registrations;     ///< Ever.
  std::uint64_t to_registered;     ///< Bytes copied into registered memory, and into other.
  std::uint64_t to_pageable;
  std::uint64_t contexts;  ///< Retained now, by anyone.
  std::uint64_t streams;   ///< Alive, those of fake_cuda_stream not counted.
  std::uint64_t events;    ///< Alive.
};
FAKE_CUDA_API FakeCudaCounts fake_cuda_counts();

}  // extern "C"
