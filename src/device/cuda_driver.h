/// The part of the CUDA driver that copies out of a device's memory, loaded at run time: Varve
/// builds without CUDA, and looks for the driver only when a tensor is on a device.
#pragma once

#include <cstddef>
#include <string>

#include "varve/status.h"

namespace varve {

/// Functions of libcuda.so.1, under the names they have in the CUDA Driver API reference (those
/// that end in _v2 there since CUDA 4 or 11 too: the header that renames them is not used here).
/// Handles are opaque pointers, device addresses 64-bit numbers, results 0 or an error number.
struct CudaDriver {
  using Handle = void*;
  using Address = unsigned long long;  // NOLINT(google-runtime-int): CUdeviceptr is one.

  int (*init)(unsigned flags);
  int (*get_error_name)(int error, const char** name);
  int (*get_error_string)(int error, const char** text);
  int (*device_get)(int* device, int ordinal);
  int (*context_retain)(Handle* context, int device);  ///< The one that the CUDA runtime uses.
  int (*context_release)(int device);
  int (*context_push)(Handle context);
  int (*context_pop)(Handle* context);
  int (*stream_create)(Handle* stream, unsigned flags);
  int (*stream_destroy)(Handle stream);
  int (*stream_synchronize)(Handle stream);
  int (*stream_wait_event)(Handle stream, Handle event, unsigned flags);
  int (*event_create)(Handle* event, unsigned flags);
  int (*event_destroy)(Handle event);
  int (*event_record)(Handle event, Handle stream);
  int (*event_synchronize)(Handle event);
  int (*copy_to_host_async)(void* target, Address source, std::size_t bytes, Handle stream);
  int (*host_register)(void* memory, std::size_t bytes, unsigned flags);
  int (*host_unregister)(void* memory);

  // From cuda.h; the driver keeps their values for programs that were built long ago.
  static constexpr unsigned kStreamNonBlocking = 1;  ///< CU_STREAM_NON_BLOCKING
  static constexpr unsigned kEventBlockingSync = 1;  ///< CU_EVENT_BLOCKING_SYNC
  static constexpr unsigned kEventNoTiming = 2;      ///< CU_EVENT_DISABLE_TIMING
  static constexpr unsigned kRegisterPortable = 1;   ///< CU_MEMHOSTREGISTER_PORTABLE

  /// Returns the driver of this process: loaded and initialised by the first call, kept for good.
  /// Threads: safe. Errors: Unimplemented where there is none, or one older than CUDA 11;
  /// Unavailable where it finds no device.
  static Result<const CudaDriver*> Get();

  /// Returns Ok for 0, else Unavailable, "what: CUDA_ERROR_... (719): text".
  [[nodiscard]] Status Check(int error, const std::string& what) const;
};

}  // namespace varve
