/// The part of the CUDA driver that copies between a device's memory and the host's, loaded at run
/// time: Varve builds without CUDA, and looks for the driver only when a tensor is on a device.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "varve/status.h"

namespace varve {

/// Functions of libcuda.so.1, under the names they have in the CUDA Driver API reference (those
/// that end in _v2 there since CUDA 4 or 11 too: the header that renames them is not used here).
/// Handles are opaque pointers, device addresses 64-bit numbers, results 0 or an error number.
struct CudaDriver {
  using Handle = void*;
  using Address = unsigned long long;  // NOLINT(google-runtime-int): CUdeviceptr is one.

  /// CUDA_MEMCPY2D.
  struct RowsCopy {
    std::size_t source_x = 0, source_y = 0;
    unsigned source_type = 0;
    const void* source_host = nullptr;
    Address source_device = 0;
    Handle source_array = nullptr;
    std::size_t source_pitch = 0;
    std::size_t target_x = 0, target_y = 0;
    unsigned target_type = 0;
    void* target_host = nullptr;
    Address target_device = 0;
    Handle target_array = nullptr;
    std::size_t target_pitch = 0;
    std::size_t width = 0, height = 0;
  };

  /// CUmemcpyAttributes.
  struct BatchAttributes {
    int order = 0;
    std::array<int, 4> location_hints{};
    unsigned flags = 0;
  };

  int (*init)(unsigned flags);
  int (*get_error_name)(int error, const char** name);
  int (*get_error_string)(int error, const char** text);
  int (*device_get)(int* device, int ordinal);
  int (*device_bus_id)(char* text, int bytes, int device);
  int (*device_attribute)(int* value, int attribute, int device);
  int (*context_retain)(Handle* context, int device);  ///< The one that the CUDA runtime uses.
  int (*context_push)(Handle context);
  int (*context_pop)(Handle* context);
  int (*exchange_capture_mode)(int* mode);  ///< Of this thread.
  int (*stream_create)(Handle* stream, unsigned flags);
  int (*stream_synchronize)(Handle stream);
  int (*stream_wait_event)(Handle stream, Handle event, unsigned flags);
  int (*event_create)(Handle* event, unsigned flags);
  int (*event_destroy)(Handle event);
  int (*event_record)(Handle event, Handle stream);
  int (*event_synchronize)(Handle event);
  int (*copy_to_host_async)(void* target, Address source, std::size_t bytes, Handle stream);
  int (*copy_to_device_async)(Address target, const void* source, std::size_t bytes, Handle stream);
  int (*copy_rows_async)(const void* rows_copy, Handle stream);  ///< A RowsCopy.
  int (*host_register)(void* memory, std::size_t bytes, unsigned flags);
  int (*host_unregister)(void* memory);
  int (*module_load)(Handle* module, const void* text);
  int (*module_function)(Handle* function, Handle module, const char* name);
  int (*launch)(Handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                Handle stream, void** parameters, void** extra);
  /// Many copies in one call; null in drivers before CUDA 12.8.
  int (*copy_batch_async)(Address* targets, Address* sources, std::size_t* sizes, std::size_t count,
                          void* batch_attributes, std::size_t* first_of_attributes,
                          std::size_t attribute_count, std::size_t* failed, Handle stream);

  // From cuda.h; the driver keeps their values for programs that were built long ago.
  static constexpr unsigned kStreamNonBlocking = 1;  ///< CU_STREAM_NON_BLOCKING
  static constexpr unsigned kEventBlockingSync = 1;  ///< CU_EVENT_BLOCKING_SYNC
  static constexpr unsigned kEventNoTiming = 2;      ///< CU_EVENT_DISABLE_TIMING
  static constexpr unsigned kRegisterPortable = 1;   ///< CU_MEMHOSTREGISTER_PORTABLE
  static constexpr unsigned kRegisterMapped = 2;     ///< CU_MEMHOSTREGISTER_DEVICEMAP
  static constexpr unsigned kHostMemory = 1;         ///< CU_MEMORYTYPE_HOST
  static constexpr unsigned kDeviceMemory = 2;       ///< CU_MEMORYTYPE_DEVICE
  /// CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
  static constexpr int kSharesHostAddresses = 91;
  static constexpr int kRelaxedCapture = 2;  ///< CU_STREAM_CAPTURE_MODE_RELAXED
  static constexpr int kInStreamOrder = 1;   ///< CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
  static constexpr int kOutOfMemory = 2;     ///< CUDA_ERROR_OUT_OF_MEMORY
  /// CU_DEVICE_ATTRIBUTE_MAX_PITCH of all devices: bytes between two rows of one copy.
  static constexpr std::int64_t kMostPitch = 0x7fffffff;

  /// Returns the driver of this process: loaded and initialised by the first call, kept for good.
  /// Threads: safe. Errors: Unimplemented where there is none, or one older than CUDA 11;
  /// Unavailable where it finds no device.
  static Result<const CudaDriver*> Get();

  /// Returns true for errors that say that this driver lacks a function or cannot compile a kernel,
  /// now and later.
  static bool IsLacking(int error);

  /// Returns Ok for 0, else Unavailable, "what: CUDA_ERROR_... (719): text". For errors that a
  /// device reports late, by whatever call comes next, it says that the call is not their cause.
  [[nodiscard]] Status Check(int error, const std::string& what) const;
};

/// The kernels of move_kernel.h that a device has loaded. Threads: safe. Kernels stay loaded as
/// long as the context.
class LoadedKernels {
 public:
  explicit LoadedKernels(const CudaDriver& driver) : driver_(driver) {}
  LoadedKernels(const LoadedKernels&) = delete;
  LoadedKernels& operator=(const LoadedKernels&) = delete;
  ~LoadedKernels() = default;

  /// Returns the kernel for elements of that size; null where it has not been compiled. Does not
  /// wait for a thread that compiles it.
  [[nodiscard]] CudaDriver::Handle Find(std::uint32_t item);

  /// Has the driver compile it, if need be, for the context that is current. Returns null where
  /// that fails; sets `lacks` where the driver can compile none.
  CudaDriver::Handle Compile(std::uint32_t item, std::atomic<bool>* lacks);

 private:
  const CudaDriver& driver_;
  std::mutex compiling_;                             // Held while one is compiled.
  std::mutex mutex_;                                 // Guards what follows.
  std::map<std::uint32_t, CudaDriver::Handle> all_;  // By size.
};

}  // namespace varve
