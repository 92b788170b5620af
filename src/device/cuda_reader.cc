// How copies are ordered with the work of the training, on each device:
//  1. At the call of a save, on the thread that makes it, an event is recorded on the stream that
//     last wrote to the tensors (After), and our own stream waits for it. Kernels that are queued
//     by then come before the copies: a copy never sees half of their work. The host waits for
//     nothing.
//  2. Copies are queued on our own stream, which is not ordered with any other (non-blocking): what
//     the training queues later runs beside them.
//  3. The thread that asked for the copies of a block (Read) sleeps until the event behind them is
//     reached. It does not wait for the device, nor for our stream, which other threads use too.
//     Several blocks are under way, one for each thread, so that the device copies while other
//     blocks are summed.
//  4. Only then is the save reported as staged, and the tensors' owner released: memory that is
//     freed earlier may be given to other tensors by the caching allocator, which knows nothing of
//     our stream, and be written to while it is copied. So a failed Read waits too.
// The context is the device's primary one, which the CUDA runtime and so PyTorch use. It is made
// current for the length of a call only, on whatever thread that is.

#include "device/cuda_reader.h"

#include <algorithm>
#include <string>
#include <utility>

namespace varve {
namespace {

std::string Named(int device) { return "CUDA device " + std::to_string(device); }

/// Makes a context current on this thread until the end of the scope.
class Current {
 public:
  Current(const CudaDriver& driver, CudaDriver::Handle context)
      : driver_(driver), error_(driver.context_push(context)) {}
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() {
    CudaDriver::Handle popped = nullptr;
    if (error_ == 0) {
      driver_.context_pop(&popped);
    }
  }
  [[nodiscard]] int error() const { return error_; }

 private:
  const CudaDriver& driver_;
  const int error_;
};

/// An event that can be waited for asleep. Its context must be current.
class Event {
 public:
  explicit Event(const CudaDriver& driver)
      : driver_(driver),
        error_(driver.event_create(&event_,
                                   CudaDriver::kEventBlockingSync | CudaDriver::kEventNoTiming)) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() {
    if (error_ == 0) {
      driver_.event_destroy(event_);
    }
  }
  [[nodiscard]] int error() const { return error_; }
  [[nodiscard]] CudaDriver::Handle get() const { return event_; }

 private:
  const CudaDriver& driver_;
  CudaDriver::Handle event_ = nullptr;
  const int error_;
};

}  // namespace

Result<std::unique_ptr<CudaReader>> CudaReader::Make(bool pin) {
  VARVE_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Get());
  return std::unique_ptr<CudaReader>(new CudaReader(*driver, pin));
}

// A destructor cannot report errors; the driver frees everything when the process ends.
CudaReader::~CudaReader() {
  if (!devices_.empty()) {
    const Current current(driver_, devices_.begin()->second.context);
    for (const auto& [memory, done] : pinned_) {
      if (done) {
        driver_.host_unregister(memory);
      }
    }
  }
  for (const auto& [ordinal, device] : devices_) {
    {
      const Current current(driver_, device.context);
      driver_.stream_destroy(device.stream);
    }
    driver_.context_release(device.device);
  }
}

Result<CudaReader::Device> CudaReader::DeviceAt(int ordinal) {
  const std::scoped_lock lock(mutex_);
  if (const auto known = devices_.find(ordinal); known != devices_.end()) {
    return known->second;
  }
  const std::string what = "begin to copy from " + Named(ordinal);
  Device device;
  VARVE_RETURN_IF_ERROR(driver_.Check(driver_.device_get(&device.device, ordinal), what));
  VARVE_RETURN_IF_ERROR(
      driver_.Check(driver_.context_retain(&device.context, device.device), what));
  int error = 0;
  {
    const Current current(driver_, device.context);
    error = current.error() != 0
                ? current.error()
                : driver_.stream_create(&device.stream, CudaDriver::kStreamNonBlocking);
  }
  if (error != 0) {
    driver_.context_release(device.device);
    return driver_.Check(error, what);
  }
  devices_.emplace(ordinal, device);
  return device;
}

Status CudaReader::After(int device, void* stream) {
  VARVE_ASSIGN_OR_RETURN(const Device known, DeviceAt(device));
  const std::string what = "wait for the work queued on " + Named(device);
  const Current current(driver_, known.context);
  VARVE_RETURN_IF_ERROR(driver_.Check(current.error(), what));
  const Event event(driver_);
  VARVE_RETURN_IF_ERROR(driver_.Check(event.error(), what));
  VARVE_RETURN_IF_ERROR(driver_.Check(driver_.event_record(event.get(), stream), what));
  // An event that is destroyed meanwhile lives until all streams that wait for it go on.
  return driver_.Check(driver_.stream_wait_event(known.stream, event.get(), 0), what);
}

Status CudaReader::Read(std::span<const DeviceCopy> copies) {
  while (!copies.empty()) {
    const int device = copies.front().device;
    const auto end = std::find_if(copies.begin(), copies.end(),
                                  [&](const DeviceCopy& copy) { return copy.device != device; });
    const auto count = static_cast<std::size_t>(end - copies.begin());
    VARVE_ASSIGN_OR_RETURN(const Device known, DeviceAt(device));
    VARVE_RETURN_IF_ERROR(ReadFrom(known, copies.first(count)));
    copies = copies.subspan(count);
  }
  return Status::Ok();
}

Status CudaReader::ReadFrom(const Device& device, std::span<const DeviceCopy> copies) {
  const std::string what = "copy from " + Named(copies.front().device);
  const Current current(driver_, device.context);
  VARVE_RETURN_IF_ERROR(driver_.Check(current.error(), what));
  const Event event(driver_);
  VARVE_RETURN_IF_ERROR(driver_.Check(event.error(), what));
  int failed = 0;
  for (auto copy = copies.begin(); copy != copies.end() && failed == 0; ++copy) {
    failed = driver_.copy_to_host_async(copy->target,
                                        reinterpret_cast<CudaDriver::Address>(copy->source),
                                        copy->bytes, device.stream);
  }
  // Also after a failure: those that were queued before it are under way.
  int error = driver_.event_record(event.get(), device.stream);
  if (error == 0) {
    error = driver_.event_synchronize(event.get());
  }
  if (error != 0) {
    driver_.stream_synchronize(device.stream);  // Waits for others' copies too, at worst.
  }
  return driver_.Check(failed != 0 ? failed : error, what);
}

bool CudaReader::Pin(int device, std::span<std::byte> memory) {
  if (!pin_ || memory.empty()) {
    return false;
  }
  {
    const std::scoped_lock lock(mutex_);
    if (const auto known = pinned_.find(memory.data()); known != pinned_.end()) {
      return known->second;
    }
  }
  const auto known = DeviceAt(device);
  if (!known.ok()) {
    return false;
  }
  // Not under the lock, for it takes the driver about a millisecond.
  const Current current(driver_, known->context);
  const bool done =
      current.error() == 0 &&
      driver_.host_register(memory.data(), memory.size(), CudaDriver::kRegisterPortable) == 0;
  const std::scoped_lock lock(mutex_);
  return pinned_.emplace(memory.data(), done).first->second;
}

}  // namespace varve
