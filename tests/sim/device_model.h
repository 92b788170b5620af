/// A CUDA driver with one or two devices, on which nothing runs when it is queued.
///
/// Each stream is a queue of operations: kernels of the training, copies, batches, launches of the
/// move kernel, records of events and waits for them. The seed decides when a device runs the next
/// part of an operation, and of which stream: while the host waits for an event, between the calls,
/// or as late as possible. The parts of one operation run in any order. Host memory is read or
/// written when a part of a copy runs, and only if it is lent to the engine then.
///
/// The seed may let calls fail, or a device die: from then on it runs nothing and each of its calls
/// fails. One thread uses a model and its driver. Addresses on a device are none of this process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda_driver.h"
#include "device/move_kernel.h"
#include "sim/plants.h"
#include "sim/world.h"
#include "support/random.h"

namespace varve::sim {

inline constexpr std::uint64_t kDeviceBytes = std::uint64_t{128} << 10;

/// Returns the byte at `offset` of a device's memory where it holds a value. Values of a run are
/// numbered; two of them differ in each byte unless their numbers differ by a multiple of 256.
inline std::byte ContentAt(std::uint64_t value, std::uint64_t offset) {
  return static_cast<std::byte>(value * 151 + offset * 7 + (offset >> 8) * 13);
}

/// A part of an operation that runs as one.
struct DevicePart {
  enum class Kind : std::uint8_t { kToHost, kToDevice, kWrite, kRead };
  Kind kind = Kind::kWrite;
  std::uint64_t offset = 0;  ///< In the device's memory.
  std::byte* host = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t value = 0;  ///< Of kWrite and kRead: the value that is written, or must be there.
};

struct DeviceModelOptions {
  int devices = 1;
  bool has_batches = true;
  bool has_kernels = true;
  std::uint64_t runs_one_in = 0;         ///< Calls at which devices go on; 0: they never do.
  std::set<std::uint64_t> fails_at;      ///< Numbers of the calls that fail.
  std::optional<std::uint64_t> dies_at;  ///< Number of the part at which a device dies.
};

class DeviceModel {
 public:
  using Handle = CudaDriver::Handle;
  using Address = CudaDriver::Address;

  /// All pointers must stay valid. No other model may be in use on this thread.
  DeviceModel(test::Random* random, Trace* trace, Plant plant, DeviceModelOptions options);
  DeviceModel(const DeviceModel&) = delete;
  DeviceModel& operator=(const DeviceModel&) = delete;
  ~DeviceModel();

  [[nodiscard]] const CudaDriver& driver() const { return driver_; }
  /// Returns the address of a byte of a device. It cannot be dereferenced.
  [[nodiscard]] static std::byte* AddressOf(int device, std::uint64_t offset);

  // What the training does. It is right, and none of it fails.
  Handle AddStream(int device);
  void QueueKernel(int device, Handle stream, std::vector<DevicePart> parts);
  /// Orders what is queued on `second` from now on behind what is queued on `first`.
  void Order(int device, Handle first, Handle second);

  /// Lets copies use host memory until it is taken back.
  void Lend(const std::byte* memory, std::uint64_t bytes) { lent_[memory] = bytes; }
  void TakeBack(const std::byte* memory) { lent_.erase(memory); }

  /// Lets the devices go on, perhaps.
  void RunSome();
  /// Runs all that is queued. Blames what can never run.
  void RunAll();

  /// Blames a call of the engine that has left a context or a mode of capture behind.
  void JudgeThread();
  [[nodiscard]] bool is_dead(int device) const { return DeviceAt(device).dead; }
  [[nodiscard]] bool has_failed() const { return failures_ > 0; }
  [[nodiscard]] std::byte At(int device, std::uint64_t offset) const {
    return DeviceAt(device).memory[offset];
  }
  [[nodiscard]] std::uint64_t steps() const { return steps_; }
  /// Returns the first thing that was wrong; empty if nothing was.
  [[nodiscard]] const std::string& problem() const { return problem_; }
  void Blame(std::string problem);

 private:
  struct Operation {
    std::vector<DevicePart> parts;
    std::shared_ptr<bool> waits_for;  ///< Null for all but a wait for an event.
    std::shared_ptr<bool> reaches;    ///< Null for all but the record of an event.
  };
  struct Stream {
    int device = 0;
    bool copies_to_device = false;
    std::uint64_t copy_bytes = 0;  ///< Of copies that have not run.
    std::deque<Operation> queue;
  };
  struct Device {
    std::vector<std::byte> memory;
    bool dead = false;
  };
  struct Event {
    int device = 0;
    std::shared_ptr<bool> reached;  ///< Of the last record; null before the first.
    bool copies_to_device = false;  ///< The stream of the last record does.
  };

  // device_driver.cc: the calls of the driver.
  CudaDriver MakeDriver();
  void AddCopies(CudaDriver* driver) const;
  int Enter();
  int EnterContext();
  int EnterStream(Handle handle, Stream** stream);
  Event* EventOf(Handle handle);
  int RetainContext(Handle* context, int device);
  int PushContext(Handle context);
  int PopContext(Handle* context);
  int ExchangeMode(int* mode);
  int CreateStream(Handle* stream, unsigned flags);
  int SynchronizeStream(Handle handle);
  int WaitForEvent(Handle stream, Handle event);
  int CreateEvent(Handle* event);
  int DestroyEvent(Handle event);
  int RecordEvent(Handle event, Handle stream);
  int SynchronizeEvent(Handle event);
  static std::uint64_t OffsetOf(Address address, int device);
  int CopyRun(DevicePart::Kind kind, Address device, const void* host, std::size_t bytes,
              Handle stream);
  int CopyRows(const CudaDriver::RowsCopy& rows, Handle stream);
  int CopyBatch(const Address* targets, const Address* sources, const std::size_t* sizes,
                std::size_t count, Handle stream);
  int Register(void* memory, std::size_t bytes);
  int Unregister(void* memory);
  int LoadModule(Handle* module);
  int FindFunction(Handle* function, std::string_view name);
  int Launch(Handle function, std::array<unsigned, 3> grid, unsigned threads, Handle stream,
             const MoveTable& table);
  void AddElements(const MovePiece& piece, bool to_host, int device,
                   std::vector<DevicePart>* parts);

  // device_model.cc: the devices.
  [[nodiscard]] const Device& DeviceAt(int device) const {
    return devices_[static_cast<std::size_t>(device)];
  }
  [[nodiscard]] std::size_t IndexOf(Handle stream, int device) const;
  [[nodiscard]] static Address BaseOf(int device);
  [[nodiscard]] bool IsRegistered(const std::byte* memory, std::uint64_t bytes) const;
  void QueueCopy(Stream* stream, std::vector<DevicePart> parts);
  static bool CanRun(const Stream& stream);
  bool RunOne();
  void RunUntil(const bool& reached);
  void RunPart(Stream* stream, const DevicePart& part);
  void CopyPart(std::byte* on_device, const DevicePart& part);
  void Die(int device);

  test::Random& random_;
  Trace& trace_;
  const Plant plant_;
  DeviceModelOptions options_;
  const CudaDriver driver_;
  std::vector<Device> devices_;
  std::deque<Stream> streams_;  // The first are the default streams of the devices.
  std::map<std::uint64_t, Event> events_;
  std::uint64_t next_event_ = 0;
  std::vector<int> contexts_;  // Of this thread, the current one last.
  int capture_mode_ = 0;
  std::map<const std::byte*, std::uint64_t> lent_;
  std::map<const std::byte*, std::uint64_t> registered_;
  std::uint64_t calls_ = 0;
  std::uint64_t failures_ = 0;
  std::uint64_t steps_ = 0;
  std::string problem_;
};

}  // namespace varve::sim
