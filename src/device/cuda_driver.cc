#include "device/cuda_driver.h"

#include <dlfcn.h>

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
  library.Find("cuDevicePrimaryCtxRetain", &driver.context_retain);
  library.Find("cuDevicePrimaryCtxRelease_v2", &driver.context_release);
  library.Find("cuCtxPushCurrent_v2", &driver.context_push);
  library.Find("cuCtxPopCurrent_v2", &driver.context_pop);
  library.Find("cuStreamCreate", &driver.stream_create);
  library.Find("cuStreamDestroy_v2", &driver.stream_destroy);
  library.Find("cuStreamSynchronize", &driver.stream_synchronize);
  library.Find("cuStreamWaitEvent", &driver.stream_wait_event);
  library.Find("cuEventCreate", &driver.event_create);
  library.Find("cuEventDestroy_v2", &driver.event_destroy);
  library.Find("cuEventRecord", &driver.event_record);
  library.Find("cuEventSynchronize", &driver.event_synchronize);
  library.Find("cuMemcpyDtoHAsync_v2", &driver.copy_to_host_async);
  library.Find("cuMemHostRegister_v2", &driver.host_register);
  library.Find("cuMemHostUnregister", &driver.host_unregister);
  if (!library.missing().empty()) {
    return Unimplemented("the CUDA driver has no " + library.missing() +
                         ": one of CUDA 11 or newer is needed");
  }
  VARVE_RETURN_IF_ERROR(driver.Check(driver.init(0), "initialise the CUDA driver"));
  return driver;
}

}  // namespace

Result<const CudaDriver*> CudaDriver::Get() {
  // Never unloaded: the process may be using it for other things.
  static const Result<CudaDriver> loaded = Load();
  if (!loaded.ok()) {
    return loaded.status();
  }
  return &*loaded;
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
  return Unavailable(what + ": " + name + " (" + std::to_string(error) + "): " + text);
}

}  // namespace varve
