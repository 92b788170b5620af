/// A CUDA driver for machines without a device: a library named libcuda.so.1 with the functions
/// that Varve calls, two devices in host memory, and streams that are threads. It refuses calls
/// that a real driver leaves undefined, so that a test can fail: a call without a context, an event
/// or a copy on a stream of another device, a device's memory read by the process itself (it is not
/// readable). It also refuses what costs more than it should: events that are waited for awake,
/// memory that is registered for one device alone. It shows neither the speed of a device nor rules
/// that it does not implement.
///
/// The number of a device is its ordinal among those that the process sees, as CUDA_VISIBLE_DEVICES
/// has them, parts of devices (MIG) too; PyTorch counts alike. The driver's handle of it is another
/// number.
///
/// Tests name the driver's functions without the suffix _v2.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(FAKE_CUDA_BUILD)
#define FAKE_CUDA_API __attribute__((visibility("default")))
#else
#define FAKE_CUDA_API
#endif

extern "C" {

// ---- memory and streams of a training ----

/// Returns zeroed memory of a device. The address is good for copies by the driver only.
FAKE_CUDA_API void* fake_cuda_alloc(int device, std::size_t bytes);
/// Waits for nothing, like a caching allocator: what is still to be copied reads as 0xDD then.
FAKE_CUDA_API void fake_cuda_free(void* memory);
/// Writes device memory at once, without any stream.
FAKE_CUDA_API void fake_cuda_poke(void* memory, const void* from, std::size_t bytes);
/// Reads device memory at once, without any stream.
FAKE_CUDA_API void fake_cuda_peek(const void* memory, void* to, std::size_t bytes);

/// Returns a stream as a training has them; never destroyed.
FAKE_CUDA_API void* fake_cuda_stream(int device);
/// Queues a kernel: after `milliseconds` of work it fills memory with `value`. A null stream is the
/// device's default one.
FAKE_CUDA_API void fake_cuda_fill(int device, void* stream, void* memory, std::size_t bytes,
                                  std::uint8_t value, int milliseconds);

// ---- failures ----

/// Makes the function of that name return `error` once, after `calls` more calls.
FAKE_CUDA_API void fake_cuda_fail(const char* function, int error, int calls);
/// Makes the function return CUDA_ERROR_NOT_SUPPORTED (801) on every call. A null name ends this
/// for all functions. dlsym still finds the function.
FAKE_CUDA_API void fake_cuda_hide(const char* function);
/// Makes every function but cuInit and cuGetError* return `error`, as after another kernel's
/// illegal address; 0 ends this. The device is dead meanwhile: queued copies and kernels move
/// nothing, and calls that wait return at once. The functions that release something (a stream, an
/// event, a module, a context, a registration) return the error and release it all the same.
FAKE_CUDA_API void fake_cuda_poison(int error);
/// Makes cuMemHostRegister return CUDA_ERROR_OUT_OF_MEMORY (2) for more bytes than these. 0 means
/// no limit.
FAKE_CUDA_API void fake_cuda_limit_registration(std::size_t most_bytes_per_call,
                                                std::size_t most_bytes_in_all);
/// Makes each copy and each kernel that moves pieces take at least so long.
FAKE_CUDA_API void fake_cuda_slow_copies(int microseconds);
/// Makes the calls cuMemcpyDtoHAsync and cuMemcpyHtoDAsync take so long before they queue a copy.
FAKE_CUDA_API void fake_cuda_slow_calls(int microseconds);

// ---- stream capture ----

/// Begins a capture in the mode "global" by the calling thread. Until it ends, a potentially unsafe
/// call by another thread, whose own mode is not RELAXED, returns
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900) and breaks the capture. The mode THREAD_LOCAL does
/// not protect here, though it does with a real driver.
FAKE_CUDA_API void fake_cuda_begin_capture();
/// Returns 0 if the capture is intact, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (901) if it is broken.
FAKE_CUDA_API int fake_cuda_end_capture();

// ---- what has happened ----

struct FakeCudaCounts {
  std::uint64_t copies;             ///< That have been made.
  std::uint64_t copies_under_way;   ///< That are queued.
  std::uint64_t most_at_once;       ///< Copies that were ever queued at one time.
  std::uint64_t batches;            ///< Calls of cuMemcpyBatchAsync that have queued all copies.
  std::uint64_t kernels;            ///< Kernels of cuLaunchKernel that have run.
  std::uint64_t kernel_bytes;       ///< Bytes that they have moved.
  std::uint64_t bytes_queued;       ///< Bytes of copies and kernels that are queued, all devices.
  std::uint64_t most_bytes_queued;  ///< The most that were ever queued on one device at one time.
  std::uint64_t registered_bytes;   ///< Now.
  std::uint64_t registrations_now;  ///< Ranges that are registered now.
  std::uint64_t registrations;      ///< Ever.
  std::uint64_t
      unregistered_late;          ///< Ranges that had pages unmapped before they were unregistered.
  std::uint64_t to_registered;    ///< Bytes queued into registered memory, by kernels too.
  std::uint64_t to_pageable;      ///< Bytes queued into other host memory.
  std::uint64_t from_registered;  ///< Bytes queued out of registered memory, by kernels too.
  std::uint64_t from_pageable;    ///< Bytes queued out of other host memory.
  std::uint64_t contexts;         ///< Retained now, by anyone.
  std::uint64_t streams;          ///< Alive, those of fake_cuda_stream not counted.
  std::uint64_t events;           ///< Alive.
  std::uint64_t modules;          ///< Loaded now.
};
FAKE_CUDA_API FakeCudaCounts fake_cuda_counts();
/// Sets `most_at_once` and `most_bytes_queued` to what is queued now.
FAKE_CUDA_API void fake_cuda_reset_most();

/// Returns how many registered ranges have pages that are not mapped any more. Memory that was
/// unmapped and mapped anew is not found.
FAKE_CUDA_API int fake_cuda_registered_unmapped();

struct FakeCudaLogEntry {
  const char* what;                 ///< "copy begins", "copy ends" or "event reached".
  unsigned long long host_address;  ///< Lowest host byte of the copy; 0 for events.
  std::size_t bytes;                ///< Bytes that are moved; 0 for events.
  int device;
  unsigned long long order;  ///< Number of this entry: later entries have greater ones.
};
/// Empties the log and begins to fill it. A 2D copy has one pair of entries; a kernel has one pair
/// for each of its pieces, whose host address is the lowest one.
FAKE_CUDA_API void fake_cuda_log_begin();
FAKE_CUDA_API std::size_t fake_cuda_log_size();
FAKE_CUDA_API FakeCudaLogEntry fake_cuda_log_at(std::size_t index);
/// Takes the next number of the log, so that a test can place an event of its own among the
/// entries.
FAKE_CUDA_API unsigned long long fake_cuda_order();

}  // extern "C"
