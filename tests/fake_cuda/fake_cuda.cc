#include "support/fake_cuda.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>

namespace {

constexpr int kDevices = 2;
constexpr int kInvalidValue = 1;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidContext = 201;
constexpr int kInvalidHandle = 400;
constexpr int kAlreadyRegistered = 712;
constexpr int kNotRegistered = 713;

struct Allocation {
  int device = 0;
  std::vector<std::byte> content;
};

struct Context {
  int device = 0;
  int retained = 0;
};

class Stream;

/// The state of the whole process.
struct State {
  std::mutex mutex;  // Guards what follows.
  std::condition_variable changed;
  FakeCudaCounts counts{};
  bool initialised = false;
  int copy_microseconds = 0;
  std::map<std::string, std::pair<int, int>> failures;  // Error, calls until then.
  std::map<std::byte*, std::size_t> registered;
  std::map<std::byte*, std::shared_ptr<Allocation>> memory;
  std::array<Context, kDevices> contexts{Context{0, 0}, Context{1, 0}};
  std::mutex streams_mutex;  // Guards the streams that are kept.
  std::vector<Stream*> streams;
};
// Never destroyed: a process may end with work queued.
State& g = *new State;  // NOLINT(readability-identifier-length)

thread_local std::vector<Context*> t_current;

/// The number of times that an event was recorded, and the number of these records that have been
/// reached.
struct EventState {
  std::uint64_t recorded = 0;
  std::uint64_t reached = 0;
};
struct Event {
  int device = 0;
  std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

/// Runs queued work in order, on a thread of its own.
class Stream {
 public:
  explicit Stream(int device) : device_(device), thread_([this] { Run(); }) {}
  ~Stream() {
    {
      const std::scoped_lock lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  [[nodiscard]] int device() const { return device_; }
  void Queue(std::function<void()> work) {
    const std::scoped_lock lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ended_ || !work_.empty(); });
      if (work_.empty()) {
        return;
      }
      const std::function<void()> next = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      next();
      lock.lock();
    }
  }

  const int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool ended_ = false;
  std::thread thread_;
};

/// Returns a new stream that lives as long as the process.
Stream* KeptStream(int device) {
  auto* const stream = new Stream(device);
  const std::scoped_lock lock(g.streams_mutex);
  g.streams.push_back(stream);
  return stream;
}

Stream& DefaultStream(int device) {
  static const std::array<Stream*, kDevices> streams{KeptStream(0), KeptStream(1)};
  return *streams[static_cast<std::size_t>(device)];
}

Stream& StreamOf(void* handle, int device) {
  return handle == nullptr ? DefaultStream(device) : *static_cast<Stream*>(handle);
}

/// Returns the error that a test has set for the function, or 0. The lock is held.
int Failure(const std::string& function) {
  const auto wanted = g.failures.find(function);
  if (wanted == g.failures.end() || wanted->second.second-- > 0) {
    return 0;
  }
  const int error = wanted->second.first;
  g.failures.erase(wanted);
  return error;
}

/// Makes the checks that every call begins with. The lock is held.
int Begin(const std::string& function) {
  if (!g.initialised) {
    return 3;  // CUDA_ERROR_NOT_INITIALIZED
  }
  return Failure(function);
}

int BeginInContext(const std::string& function) {
  const int error = Begin(function);
  return error == 0 && t_current.empty() ? kInvalidContext : error;
}

std::shared_ptr<Allocation> Find(const std::byte* address, std::size_t bytes, std::size_t* offset) {
  auto after = g.memory.upper_bound(const_cast<std::byte*>(address));
  if (after == g.memory.begin()) {
    return nullptr;
  }
  --after;
  *offset = static_cast<std::size_t>(address - after->first);
  return *offset + bytes <= after->second->content.size() ? after->second : nullptr;
}

enum class Registered : std::uint8_t { kNo, kInPart, kWhole };

Registered RegisteredOf(const std::byte* memory, std::size_t bytes) {
  Registered found = Registered::kNo;
  for (const auto& [begin, size] : g.registered) {
    if (begin <= memory && memory + bytes <= begin + size) {
      return Registered::kWhole;
    }
    if (memory < begin + size && begin < memory + bytes) {
      found = Registered::kInPart;
    }
  }
  return found;
}

}  // namespace

extern "C" {

// ---- the driver ----

FAKE_CUDA_API int cuInit(unsigned flags) {
  const std::scoped_lock lock(g.mutex);
  g.initialised = flags == 0;
  const int error = Failure("cuInit");
  return flags == 0 ? error : kInvalidValue;
}

FAKE_CUDA_API int cuGetErrorName(int error, const char** name) {
  *name = error == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : nullptr;
  return *name == nullptr ? kInvalidValue : 0;
}

FAKE_CUDA_API int cuGetErrorString(int error, const char** text) {
  *text = error == 719 ? "unspecified launch failure" : nullptr;
  return *text == nullptr ? kInvalidValue : 0;
}

FAKE_CUDA_API int cuDeviceGet(int* device, int ordinal) {
  const std::scoped_lock lock(g.mutex);
  *device = ordinal;
  const int error = Begin("cuDeviceGet");
  return error == 0 && (ordinal < 0 || ordinal >= kDevices) ? kInvalidDevice : error;
}

FAKE_CUDA_API int cuDevicePrimaryCtxRetain(void** context, int device) {
  const std::scoped_lock lock(g.mutex);
  const int error = Begin("cuDevicePrimaryCtxRetain");
  if (error == 0) {
    Context& known = g.contexts[static_cast<std::size_t>(device)];
    ++known.retained;
    ++g.counts.contexts;
    *context = &known;
  }
  return error;
}

FAKE_CUDA_API int cuDevicePrimaryCtxRelease_v2(int device) {
  const std::scoped_lock lock(g.mutex);
  Context& known = g.contexts[static_cast<std::size_t>(device)];
  if (known.retained == 0) {
    return kInvalidContext;
  }
  --known.retained;
  --g.counts.contexts;
  return 0;
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
  if (t_current.empty()) {
    return kInvalidContext;
  }
  *context = t_current.back();
  t_current.pop_back();
  return 0;
}

FAKE_CUDA_API int cuStreamCreate(void** stream, unsigned flags) {
  const std::scoped_lock lock(g.mutex);
  const int error = BeginInContext("cuStreamCreate");
  if (error == 0) {
    *stream = new Stream(t_current.back()->device);
    ++g.counts.streams;
  }
  return error == 0 && flags != 1 ? kInvalidValue : error;
}

FAKE_CUDA_API int cuStreamSynchronize(void* stream) {
  std::unique_lock lock(g.mutex);
  const int error = BeginInContext("cuStreamSynchronize");
  bool reached = false;
  StreamOf(stream, 0).Queue([&] {
    const std::scoped_lock held(g.mutex);
    reached = true;
    g.changed.notify_all();
  });
  g.changed.wait(lock, [&] { return reached; });
  return error;
}

FAKE_CUDA_API int cuStreamDestroy_v2(void* stream) {
  delete static_cast<Stream*>(stream);
  const std::scoped_lock lock(g.mutex);
  --g.counts.streams;
  return 0;
}

FAKE_CUDA_API int cuEventCreate(void** event, unsigned /*flags*/) {
  const std::scoped_lock lock(g.mutex);
  const int error = BeginInContext("cuEventCreate");
  if (error == 0) {
    *event = new Event{t_current.back()->device};
    ++g.counts.events;
  }
  return error;
}

FAKE_CUDA_API int cuEventDestroy_v2(void* event) {
  delete static_cast<Event*>(event);
  const std::scoped_lock lock(g.mutex);
  --g.counts.events;
  return 0;
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
  on.Queue([state = known.state, number] {
    const std::scoped_lock held(g.mutex);
    state->reached = number;
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

FAKE_CUDA_API int cuEventSynchronize(void* event) {
  std::unique_lock lock(g.mutex);
  const int error = BeginInContext("cuEventSynchronize");
  const std::shared_ptr<EventState> state = static_cast<Event*>(event)->state;
  g.changed.wait(lock, [&, number = state->recorded] { return state->reached >= number; });
  return error;
}

FAKE_CUDA_API int cuMemcpyDtoHAsync_v2(void* target, unsigned long long source, std::size_t bytes,
                                       void* stream) {
  const std::scoped_lock lock(g.mutex);
  int error = BeginInContext("cuMemcpyDtoHAsync");
  auto* const from = reinterpret_cast<std::byte*>(source);
  std::size_t offset = 0;
  const auto memory = Find(from, bytes, &offset);
  if (error == 0 && (memory == nullptr || memory->device != t_current.back()->device)) {
    error = kInvalidValue;
  }
  if (error != 0) {
    return error;
  }
  auto* const to = static_cast<std::byte*>(target);
  const Registered registered = RegisteredOf(to, bytes);
  if (registered == Registered::kInPart) {
    return kInvalidValue;
  }
  (registered == Registered::kWhole ? g.counts.to_registered : g.counts.to_pageable) += bytes;
  g.counts.most_at_once = std::max(g.counts.most_at_once, ++g.counts.copies_under_way);
  StreamOf(stream, memory->device).Queue([=, pause = g.copy_microseconds] {
    std::this_thread::sleep_for(std::chrono::microseconds(pause));
    const std::scoped_lock held(g.mutex);
    std::memcpy(to, memory->content.data() + offset, bytes);
    ++g.counts.copies;
    --g.counts.copies_under_way;
  });
  return 0;
}

FAKE_CUDA_API int cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned /*flags*/) {
  const std::scoped_lock lock(g.mutex);
  const int error = BeginInContext("cuMemHostRegister");
  auto* const begin = static_cast<std::byte*>(memory);
  if (error != 0) {
    return error;
  }
  for (const auto& [known, size] : g.registered) {
    if (begin < known + size && known < begin + bytes) {
      return kAlreadyRegistered;
    }
  }
  g.registered.emplace(begin, bytes);
  g.counts.registered_bytes += bytes;
  ++g.counts.registrations;
  return 0;
}

FAKE_CUDA_API int cuMemHostUnregister(void* memory) {
  const std::scoped_lock lock(g.mutex);
  const int error = BeginInContext("cuMemHostUnregister");
  const auto known = g.registered.find(static_cast<std::byte*>(memory));
  if (error != 0 || known == g.registered.end()) {
    return error != 0 ? error : kNotRegistered;
  }
  g.counts.registered_bytes -= known->second;
  g.registered.erase(known);
  return 0;
}

// ---- what tests see of it ----

void* fake_cuda_alloc(int device, std::size_t bytes) {
  void* const address =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const std::scoped_lock lock(g.mutex);
  g.memory[static_cast<std::byte*>(address)] =
      std::make_shared<Allocation>(Allocation{device, std::vector<std::byte>(bytes)});
  return address;
}

void fake_cuda_free(void* memory) {
  const std::scoped_lock lock(g.mutex);
  const auto known = g.memory.find(static_cast<std::byte*>(memory));
  std::fill(known->second->content.begin(), known->second->content.end(), std::byte{0xDD});
  ::munmap(memory, known->second->content.size());
  g.memory.erase(known);
}

void fake_cuda_poke(void* memory, const void* from, std::size_t bytes) {
  const std::scoped_lock lock(g.mutex);
  std::size_t offset = 0;
  const auto known = Find(static_cast<std::byte*>(memory), bytes, &offset);
  std::memcpy(known->content.data() + offset, from, bytes);
}

void* fake_cuda_stream(int device) { return KeptStream(device); }

void fake_cuda_fill(int device, void* stream, void* memory, std::size_t bytes, std::uint8_t value,
                    int milliseconds) {
  StreamOf(stream, device).Queue([=] {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    const std::scoped_lock lock(g.mutex);
    std::size_t offset = 0;
    const auto known = Find(static_cast<std::byte*>(memory), bytes, &offset);
    if (known == nullptr) {
      return;  // Freed meanwhile.
    }
    std::memset(known->content.data() + offset, value, bytes);
  });
}

void fake_cuda_fail(const char* function, int error, int calls) {
  const std::scoped_lock lock(g.mutex);
  g.failures[function] = {error, calls};
}

void fake_cuda_slow_copies(int microseconds) {
  const std::scoped_lock lock(g.mutex);
  g.copy_microseconds = microseconds;
}

FakeCudaCounts fake_cuda_counts() {
  const std::scoped_lock lock(g.mutex);
  return g.counts;
}

}  // extern "C"
