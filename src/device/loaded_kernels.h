/// The kernels of move_kernel.h that a device has loaded.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>

#include "device/cuda_driver.h"

namespace varve {

/// Threads: safe. Kernels stay loaded as long as the context.
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
