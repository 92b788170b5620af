// The driver's functions about devices, contexts, streams, events and host memory.

#include <array>
#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>

#include "fake_cuda/state.h"

using namespace fake_cuda;  // NOLINT(google-build-using-namespace): the functions are C.

namespace {

struct ErrorText {
  int error;
  const char* name;
  const char* text;
};

constexpr std::array<ErrorText, 9> kErrors{{
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {kNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {kCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
}};

// The stand-in refuses calls without these flags; a real driver takes them. There a wait uses a
// core without kEventBlockingSync, and one device alone knows memory without kRegisterPortable.
constexpr unsigned kEventBlockingSync = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kRegisterPortable = 1;
constexpr unsigned kRegisterMapped = 2;

int TextOf(int error, const char* ErrorText::* text, const char** found) {
  *found = nullptr;
  for (const ErrorText& known : kErrors) {
    if (known.error == error) {
      *found = known.*text;
    }
  }
  return *found == nullptr ? kInvalidValue : 0;
}

/// Handles of devices are no ordinals, so that one in place of the other is refused.
constexpr int kFirstHandle = 40;

bool IsDevice(int device) { return device >= kFirstHandle && device < kFirstHandle + kDevices; }

Context& ContextOf(int device) {
  return g.contexts[static_cast<std::size_t>(device - kFirstHandle)];
}

/// Waits until the event's latest record is reached, then returns 0; or until the driver is
/// poisoned, then returns that error.
int WaitFor(const EventState& state, std::unique_lock<std::mutex>* lock) {
  const std::uint64_t poisonings = g.poisonings;
  g.changed.wait(*lock, [&, number = state.recorded] {
    return state.reached >= number || poisonings != g.poisonings;
  });
  return poisonings != g.poisonings ? g.latest_poison : 0;
}

}  // namespace

extern "C" {

// ---- the driver, devices and contexts ----

FAKE_CUDA_API int cuInit(unsigned flags) {
  const std::scoped_lock lock(g.mutex);
  g.initialised = flags == 0;
  const int error = Begin("cuInit");
  return flags == 0 ? error : kInvalidValue;
}

FAKE_CUDA_API int cuDriverGetVersion(int* version) {
  const std::scoped_lock lock(g.mutex);
  *version = 13000;
  return Begin("cuDriverGetVersion");
}

FAKE_CUDA_API int cuGetErrorName(int error, const char** name) {
  return TextOf(error, &ErrorText::name, name);
}

FAKE_CUDA_API int cuGetErrorString(int error, const char** text) {
  return TextOf(error, &ErrorText::text, text);
}

FAKE_CUDA_API int cuDeviceGetCount(int* count) {
  const std::scoped_lock lock(g.mutex);
  *count = kDevices;
  return Begin("cuDeviceGetCount");
}

FAKE_CUDA_API int cuDeviceGet(int* device, int ordinal) {
  const std::scoped_lock lock(g.mutex);
  *device = kFirstHandle + ordinal;
  const int error = Begin("cuDeviceGet");
  return error == 0 && !IsDevice(*device) ? kInvalidDevice : error;
}

FAKE_CUDA_API int cuDeviceGetAttribute(int* value, int /*attribute*/, int device) {
  const std::scoped_lock lock(g.mutex);
  const int error = Begin("cuDeviceGetAttribute");
  if (error != 0 || !IsDevice(device)) {
    return error != 0 ? error : kInvalidDevice;
  }
  *value = 1;  // Of what the devices can do.
  return 0;
}

FAKE_CUDA_API int cuDeviceGetPCIBusId(char* id, int bytes, int device) {
  const std::scoped_lock lock(g.mutex);
  const int error = Begin("cuDeviceGetPCIBusId");
  if (error != 0 || !IsDevice(device)) {
    return error != 0 ? error : kInvalidDevice;
  }
  constexpr int kBytes = 13;
  if (bytes < kBytes) {
    return kInvalidValue;
  }
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-vararg)
  std::snprintf(id, static_cast<std::size_t>(bytes), "0000:0A:0%d.0", device - kFirstHandle);
  return 0;
}

FAKE_CUDA_API int cuDevicePrimaryCtxRetain(void** context, int device) {
  const std::scoped_lock lock(g.mutex);
  const int error = Begin("cuDevicePrimaryCtxRetain");
  if (error != 0 || !IsDevice(device)) {
    return error != 0 ? error : kInvalidDevice;
  }
  Context& known = ContextOf(device);
  ++known.retained;
  ++g.counts.contexts;
  *context = &known;
  return 0;
}

FAKE_CUDA_API int cuDevicePrimaryCtxRelease_v2(int device) {
  const std::scoped_lock lock(g.mutex);
  const int error = Begin("cuDevicePrimaryCtxRelease");
  if (!IsDevice(device)) {
    return kInvalidDevice;
  }
  Context& known = ContextOf(device);
  if (known.retained == 0) {
    return kInvalidContext;
  }
  --known.retained;
  --g.counts.contexts;
  return error;
}

FAKE_CUDA_API int cuCtxPushCurrent_v2(void* context) {
  const std::scoped_lock lock(g.mutex);
  const int error = Begin("cuCtxPushCurrent");
  if (error == 0) {
    t_current.push_back(static_cast<Context*>(context));
  }
  return error;
}

FAKE_CUDA_API int cuCtxPopCurrent_v2(void** context) {
  const std::scoped_lock lock(g.mutex);
  const int error = Begin("cuCtxPopCurrent");
  if (t_current.empty()) {
    return kInvalidContext;
  }
  *context = t_current.back();
  t_current.pop_back();
  return error;
}

FAKE_CUDA_API int cuThreadExchangeStreamCaptureMode(int* mode) {
  const std::scoped_lock lock(g.mutex);
  const int error = Begin("cuThreadExchangeStreamCaptureMode");
  if (error != 0 || *mode < 0 || *mode > kCaptureRelaxed) {
    return error != 0 ? error : kInvalidValue;
  }
  std::swap(*mode, t_capture_mode);
  return 0;
}

// ---- streams and events ----

FAKE_CUDA_API int cuStreamCreate(void** stream, unsigned flags) {
  const std::scoped_lock lock(g.mutex);
  const int error = BeginUnsafe("cuStreamCreate");
  if (error != 0 || flags != 1) {
    return error != 0 ? error : kInvalidValue;
  }
  *stream = new Stream(t_current.back()->device);
  ++g.counts.streams;
  return 0;
}

FAKE_CUDA_API int cuStreamSynchronize(void* stream) {
  std::unique_lock lock(g.mutex);
  const int error = BeginUnsafe("cuStreamSynchronize");
  if (g.poison != 0 || error == kCaptureUnsupported) {
    return error;
  }
  // The stream may reach it after this call has returned.
  const auto state = std::make_shared<EventState>();
  state->recorded = 1;
  const int device = t_current.empty() ? 0 : t_current.back()->device;
  StreamOf(stream, device).Queue([state] {
    const std::scoped_lock held(g.mutex);
    state->reached = 1;
    g.changed.notify_all();
  });
  const int failed = WaitFor(*state, &lock);
  return failed != 0 ? failed : error;
}

FAKE_CUDA_API int cuStreamDestroy_v2(void* stream) {
  int error = 0;
  {
    const std::scoped_lock lock(g.mutex);
    error = RefusedByCapture();
    if (error != 0) {
      return error;
    }
    error = Begin("cuStreamDestroy");
    --g.counts.streams;
  }
  // Its thread takes the lock, so this call must not hold it.
  delete static_cast<Stream*>(stream);
  return error;
}

FAKE_CUDA_API int cuEventCreate(void** event, unsigned flags) {
  const std::scoped_lock lock(g.mutex);
  const int error = BeginInContext("cuEventCreate");
  if (error == 0 && flags != (kEventBlockingSync | kEventDisableTiming)) {
    return kInvalidValue;
  }
  if (error == 0) {
    *event = new Event{t_current.back()->device};
    ++g.counts.events;
  }
  return error;
}

FAKE_CUDA_API int cuEventDestroy_v2(void* event) {
  const std::scoped_lock lock(g.mutex);
  const int error = Begin("cuEventDestroy");
  delete static_cast<Event*>(event);
  --g.counts.events;
  return error;
}

FAKE_CUDA_API int cuEventRecord(void* event, void* stream) {
  const std::scoped_lock lock(g.mutex);
  const int error = BeginInContext("cuEventRecord");
  if (error != 0) {
    return error;
  }
  const Event& known = *static_cast<Event*>(event);
  Stream& on = StreamOf(stream, t_current.back()->device);
  if (on.device() != known.device) {
    return kInvalidHandle;
  }
  const std::uint64_t number = ++known.state->recorded;
  on.Queue([state = known.state, number, device = on.device()] {
    const std::scoped_lock held(g.mutex);
    state->reached = number;
    Log("event reached", nullptr, 0, device);
    g.changed.notify_all();
  });
  return 0;
}

FAKE_CUDA_API int cuStreamWaitEvent(void* stream, void* event, unsigned /*flags*/) {
  const std::scoped_lock lock(g.mutex);
  const int error = BeginInContext("cuStreamWaitEvent");
  if (error != 0) {
    return error;
  }
  const std::shared_ptr<EventState> state = static_cast<Event*>(event)->state;
  StreamOf(stream, t_current.back()->device).Queue([state, number = state->recorded] {
    std::unique_lock held(g.mutex);
    g.changed.wait(held, [&] { return state->reached >= number; });
  });
  return 0;
}

FAKE_CUDA_API int cuEventQuery(void* event) {
  const std::scoped_lock lock(g.mutex);
  const int error = BeginUnsafe("cuEventQuery");
  const EventState& state = *static_cast<Event*>(event)->state;
  return error == 0 && state.reached < state.recorded ? kNotReady : error;
}

FAKE_CUDA_API int cuEventSynchronize(void* event) {
  std::unique_lock lock(g.mutex);
  const int error = BeginUnsafe("cuEventSynchronize");
  if (g.poison != 0 || error == kCaptureUnsupported) {
    return error;
  }
  const std::shared_ptr<EventState> state = static_cast<Event*>(event)->state;
  const int failed = WaitFor(*state, &lock);
  return failed != 0 ? failed : error;
}

// ---- host memory ----

FAKE_CUDA_API int cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned flags) {
  const std::scoped_lock lock(g.mutex);
  const int error = BeginUnsafe("cuMemHostRegister");
  auto* const begin = static_cast<std::byte*>(memory);
  if (error != 0) {
    return error;
  }
  if (bytes == 0 || !Mapped(begin, bytes) || flags != (kRegisterPortable | kRegisterMapped)) {
    return kInvalidValue;
  }
  for (const auto& [known, size] : g.registered) {
    if (begin < known + size && known < begin + bytes) {
      return kAlreadyRegistered;
    }
  }
  const auto exceeds = [](std::size_t value, std::size_t limit) {
    return limit != 0 && value > limit;
  };
  if (exceeds(bytes, g.most_registered_per_call) ||
      exceeds(g.counts.registered_bytes + bytes, g.most_registered)) {
    return kOutOfMemory;
  }
  g.registered.emplace(begin, bytes);
  g.counts.registered_bytes += bytes;
  ++g.counts.registrations;
  return 0;
}

FAKE_CUDA_API int cuMemHostUnregister(void* memory) {
  const std::scoped_lock lock(g.mutex);
  const int error = BeginUnsafe("cuMemHostUnregister");
  if (error != 0 && error != g.poison) {
    return error;
  }
  const auto known = g.registered.find(static_cast<std::byte*>(memory));
  if (known == g.registered.end()) {
    return error != 0 ? error : kNotRegistered;
  }
  g.counts.registered_bytes -= known->second;
  g.counts.unregistered_late += Mapped(known->first, known->second) ? 0 : 1;
  g.registered.erase(known);
  return error;
}

}  // extern "C"
