/// The state of the fake CUDA driver, and what its functions share.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "support/fake_cuda.h"

namespace fake_cuda {

constexpr int kDevices = 2;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kNotInitialised = 3;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidContext = 201;
constexpr int kInvalidPtx = 218;
constexpr int kInvalidHandle = 400;
constexpr int kNotFound = 500;
constexpr int kNotReady = 600;
constexpr int kIllegalAddress = 700;
constexpr int kAlreadyRegistered = 712;
constexpr int kNotRegistered = 713;
constexpr int kNotSupported = 801;
constexpr int kCaptureUnsupported = 900;
constexpr int kCaptureInvalidated = 901;

struct Allocation {
  int device = 0;
  std::vector<std::byte> content;
};

struct Context {
  int device = 0;
  int retained = 0;
};

/// A kernel of a module: the one that moves elements of `item` bytes.
struct Function {
  std::uint32_t item = 0;
};

struct Module {
  int device = 0;
  std::array<Function, 5> functions{};
};

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
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  /// Waits for the queued work.
  ~Stream();

  [[nodiscard]] int device() const { return device_; }
  void Queue(std::function<void()> work);

 private:
  void Run();

  const int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool ended_ = false;
  std::thread thread_;
};

struct Capture {
  std::thread::id by;
  bool broken = false;
};

/// The state of the whole process.
struct State {
  std::atomic<int> call_microseconds = 0;
  std::mutex mutex;  // Guards what follows.
  std::condition_variable changed;
  FakeCudaCounts counts{};
  std::array<std::uint64_t, kDevices> bytes_queued{};
  bool initialised = false;
  int copy_microseconds = 0;
  std::map<std::string, std::pair<int, int>, std::less<>> failures;  // Error, calls until then.
  std::set<std::string, std::less<>> hidden;
  int poison = 0;
  int latest_poison = 0;         // Not reset.
  std::uint64_t poisonings = 0;  // Work that was queued before the latest one moves nothing.
  std::optional<Capture> capture;
  std::size_t most_registered_per_call = 0;
  std::size_t most_registered = 0;
  std::map<std::byte*, std::size_t> registered;
  std::map<std::byte*, std::shared_ptr<Allocation>> memory;
  std::array<Context, kDevices> contexts{Context{0, 0}, Context{1, 0}};
  std::map<const Module*, std::unique_ptr<Module>> modules;
  bool logging = false;
  std::vector<FakeCudaLogEntry> log;
  unsigned long long order = 0;  // The last number taken.
  std::mutex streams_mutex;      // Guards the streams that are kept.
  std::vector<Stream*> streams;
};
extern State& g;  // NOLINT(readability-identifier-length)

extern thread_local std::vector<Context*> t_current;  // The last one is current.
extern thread_local int t_capture_mode;
constexpr int kCaptureRelaxed = 2;

// All functions that follow require that g.mutex is held, but for those about streams.

/// Returns a new stream that lives as long as the process.
Stream* KeptStream(int device);
/// Returns the stream of that handle; the device's default one for null.
Stream& StreamOf(void* handle, int device);

/// Makes the checks that every call begins with, and returns their error. `function` has no _v2.
int Begin(std::string_view function);
/// Does what Begin does, and refuses a call without a current context.
int BeginInContext(std::string_view function);
/// Returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if the calling thread must not make potentially
/// unsafe calls now, and breaks the capture then. Returns 0 otherwise.
int RefusedByCapture();
/// Does what RefusedByCapture does, then what BeginInContext does.
int BeginUnsafe(std::string_view function);

/// Makes the driver fail from now on; queued work moves nothing any more.
void Poison(int error);

/// Returns the device memory that wholly contains the range, or null.
std::shared_ptr<Allocation> Find(const std::byte* address, std::size_t bytes, std::size_t* offset);

enum class Registered : std::uint8_t { kNo, kInPart, kWhole };
/// Tells whether one registered range contains the memory.
Registered RegisteredOf(const std::byte* memory, std::size_t bytes);
/// Returns whether every byte is registered, by one range or by several.
bool AllRegistered(const std::byte* memory, std::size_t bytes);
/// Returns whether every page of the range is mapped.
bool Mapped(const std::byte* memory, std::size_t bytes);

/// Adds an entry if the log is on.
void Log(const char* what, const std::byte* host, std::size_t bytes, int device);

/// Work of a stream that moves bytes between a device and the host.
struct Move {
  struct Part {
    std::byte* host;
    std::size_t bytes;
  };
  bool kernel = false;
  std::vector<Part> parts;     ///< For the log.
  std::size_t bytes = 0;       ///< Of all parts.
  std::function<void()> work;  ///< Called when the stream reaches it, with the lock held.
};
/// Queues and counts the work.
void QueueMove(Stream* on, Move move);

}  // namespace fake_cuda
