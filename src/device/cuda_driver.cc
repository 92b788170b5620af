#include "device/cuda_driver.h"

#include <dlfcn.h>

#include "base/trace.h"
#include "device/move_kernel.h"

namespace varve {
namespace {

/// Looks functions up, and remembers the first that is not there.
class Library {
 public:
  explicit Library(void* handle) : handle_(handle) {}

  template <class Function>
  void Find(const char* name, Function* function) {
    void* const address = ::dlsym(handle_, name);
    if (address == nullptr && missing_.empty()) {
      missing_ = name;
    }
    *function = reinterpret_cast<Function>(address);
  }

  [[nodiscard]] const std::string& missing() const { return missing_; }

 private:
  void* handle_;
  std::string missing_;
};

/// Returns true for errors of kernels and of the hardware, which end a context: CUDA_ERROR_
/// ECC_UNCORRECTABLE, ILLEGAL_ADDRESS, LAUNCH_TIMEOUT, and HARDWARE_STACK_ERROR to LAUNCH_FAILED.
bool IsReportedLate(int error) {
  return error == 214 || error == 700 || error == 702 || (error >= 714 && error <= 719);
}

Result<CudaDriver> Load() {
  // The name that the driver's own package installs; the one without a number is for building.
  void* const handle = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return Unimplemented("the CUDA driver cannot be loaded (" +
                         std::string(why == nullptr ? "libcuda.so.1" : why) +
                         "): tensors of a device can only be copied by PyTorch here");
  }
  CudaDriver driver{};
  Library library(handle);
  library.Find("cuInit", &driver.init);
  library.Find("cuGetErrorName", &driver.get_error_name);
  library.Find("cuGetErrorString", &driver.get_error_string);
  library.Find("cuDeviceGet", &driver.device_get);
  library.Find("cuDeviceGetPCIBusId", &driver.device_bus_id);
  library.Find("cuDeviceGetAttribute", &driver.device_attribute);
  library.Find("cuDevicePrimaryCtxRetain", &driver.context_retain);
  library.Find("cuCtxPushCurrent_v2", &driver.context_push);
  library.Find("cuCtxPopCurrent_v2", &driver.context_pop);
  library.Find("cuThreadExchangeStreamCaptureMode", &driver.exchange_capture_mode);
  library.Find("cuStreamCreate", &driver.stream_create);
  library.Find("cuStreamSynchronize", &driver.stream_synchronize);
  library.Find("cuStreamWaitEvent", &driver.stream_wait_event);
  library.Find("cuEventCreate", &driver.event_create);
  library.Find("cuEventDestroy_v2", &driver.event_destroy);
  library.Find("cuEventRecord", &driver.event_record);
  library.Find("cuEventSynchronize", &driver.event_synchronize);
  library.Find("cuMemcpyDtoHAsync_v2", &driver.copy_to_host_async);
  library.Find("cuMemcpyHtoDAsync_v2", &driver.copy_to_device_async);
  library.Find("cuMemcpy2DAsync_v2", &driver.copy_rows_async);
  library.Find("cuMemHostRegister_v2", &driver.host_register);
  library.Find("cuMemHostUnregister", &driver.host_unregister);
  library.Find("cuModuleLoadData", &driver.module_load);
  library.Find("cuModuleGetFunction", &driver.module_function);
  library.Find("cuLaunchKernel", &driver.launch);
  driver.copy_batch_async =
      reinterpret_cast<decltype(driver.copy_batch_async)>(::dlsym(handle, "cuMemcpyBatchAsync"));
  if (!library.missing().empty()) {
    return Unimplemented("the CUDA driver has no " + library.missing() +
                         ": one of CUDA 11 or newer is needed");
  }
  VARVE_RETURN_IF_ERROR(driver.Check(driver.init(0), "initialise the CUDA driver"));
  return driver;
}

}  // namespace

Result<const CudaDriver*> CudaDriver::Get() {
  // Never unloaded, the process may be using it for other things; nor destroyed, threads may
  // outlive main.
  static const auto& loaded = *new Result<CudaDriver>(Load());
  if (!loaded.ok()) {
    return loaded.status();
  }
  return &*loaded;
}

// CUDA_ERROR_NOT_FOUND, NOT_SUPPORTED, NO_BINARY_FOR_GPU, INVALID_PTX, and from
// JIT_COMPILER_NOT_FOUND to JIT_COMPILATION_DISABLED.
bool CudaDriver::IsLacking(int error) {
  return error == 500 || error == 801 || error == 209 || error == 218 ||
         (error >= 221 && error <= 223);
}

Status CudaDriver::Check(int error, const std::string& what) const {
  if (error == 0) {
    return Status::Ok();
  }
  const char* name = nullptr;
  const char* text = nullptr;
  if (get_error_name(error, &name) != 0 || name == nullptr) {
    name = "CUDA error";
  }
  if (get_error_string(error, &text) != 0 || text == nullptr) {
    text = "unknown to this driver";
  }
  std::string message = what + ": " + name + " (" + std::to_string(error) + "): " + text;
  if (IsReportedLate(error)) {
    message +=
        "; a device reports such an error with the call that comes next. Work that the program had "
        "queued before caused it, not this copy: run it with CUDA_LAUNCH_BLOCKING=1 to find out "
        "which. The process cannot use the device any more";
  }
  return Unavailable(std::move(message));
}

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
