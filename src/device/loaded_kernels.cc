#include "device/loaded_kernels.h"

#include "base/trace.h"
#include "device/move_kernel.h"

namespace varve {

CudaDriver::Handle LoadedKernels::Find(std::uint32_t item) {
  const std::scoped_lock lock(mutex_);
  const auto known = all_.find(item);
  return known == all_.end() ? nullptr : known->second;
}

CudaDriver::Handle LoadedKernels::Compile(std::uint32_t item, std::atomic<bool>* lacks) {
  const std::scoped_lock one_at_a_time(compiling_);
  if (CudaDriver::Handle const known = Find(item); known != nullptr) {
    return known;
  }
  const Slice slice("compile kernel", item);
  CudaDriver::Handle module = nullptr;
  CudaDriver::Handle kernel = nullptr;
  int error = driver_.module_load(&module, MoveKernel(item).c_str());
  if (error == 0) {
    error = driver_.module_function(&kernel, module, MoveKernelName(item).c_str());
  }
  if (CudaDriver::IsLacking(error)) {
    *lacks = true;
  }
  const std::scoped_lock lock(mutex_);
  return error == 0 ? all_.emplace(item, kernel).first->second : nullptr;
}

}  // namespace varve
