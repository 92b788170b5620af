/// Copies between the memory of CUDA devices and this process, beside what the training does there.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "device/cuda_driver.h"
#include "device/device_move.h"
#include "varve/status.h"

namespace varve {

class CudaCurrent;
class CudaEvent;

/// The devices that this process has used, one object for all saves and loads. The account of how
/// copies and the training's work are ordered is in cuda_devices.cc. Threads: safe; one thread's
/// Move does not wait for another's, but for room in the queue of a device.
class CudaDevices {
 public:
  /// Bytes that are queued on a device in one direction at most, or one call's. The engine that
  /// copies takes what is queued in order, whatever the priority of a stream: a small copy of the
  /// training waits for these bytes, 0.6 ms at 55 GB/s.
  static constexpr std::uint64_t kMostQueuedBytes = std::uint64_t{32} << 20;

  /// Returns the object of this process; never destroyed. Errors: CudaDriver::Get's.
  static Result<CudaDevices*> Get();
  /// Returns another object, which knows nothing of what Get's has learnt of the driver. For tests:
  /// its streams and contexts are never given back.
  static Result<std::unique_ptr<CudaDevices>> MakeForTest();
  /// Returns one over a driver of the test's own, which must outlive it.
  static std::unique_ptr<CudaDevices> MakeForTest(const CudaDriver& driver);
  CudaDevices(const CudaDevices&) = delete;
  CudaDevices& operator=(const CudaDevices&) = delete;
  ~CudaDevices() = default;

  /// Orders later moves of `device` in that direction behind all work that has been queued on its
  /// `stream` so far (a CUstream; null is the default stream). Does not wait itself. Errors:
  /// Unavailable.
  Status After(Direction direction, int device, void* stream);

  /// Whether a call may have the driver compile a kernel. The first one takes 0.12 s, which a
  /// caller whom the training waits for spends only where rows cannot be copied without.
  enum class Kernels : std::uint8_t { kCompile, kOfBefore };

  /// Makes all moves and waits for them. When this returns or throws, none is under way any more:
  /// both sides may be freed. Errors: Unavailable, naming the device and the bytes.
  Status Move(Direction direction, std::span<const DeviceMove> moves,
              Kernels kernels = Kernels::kCompile);

  /// Moves that are queued. Wait must be called before either side's memory is freed. Where Queue
  /// fails, none is under way.
  class Work;
  Result<std::shared_ptr<const Work>> Queue(Direction direction, std::span<const DeviceMove> moves,
                                            Kernels kernels = Kernels::kCompile);
  /// Waits for all moves of all devices, whatever fails. Errors: as Move's; the first one.
  static Status Wait(const Work& work) noexcept;

  /// Compiles what calls with kOfBefore would use. Best effort: copies are right without.
  void CompileKernels(int device);
  /// Returns true until CompileKernels has returned for that device.
  [[nodiscard]] bool WantsKernels(int device);

  /// Registers `memory` with the driver, for all devices: copies go straight to it, and kernels
  /// reach it. Copies to other memory go by way of the driver's own, at a fifth of the speed.
  /// `device` is one that is used anyway: the first use of a device takes memory there. Errors:
  /// Unavailable where the driver refuses.
  Status Register(int device, std::span<std::byte> memory);
  /// Takes that back. Must be called before the memory is unmapped. Does nothing for memory that is
  /// not registered.
  void Unregister(std::byte* memory);
  [[nodiscard]] bool IsRegistered(const std::byte* memory, std::uint64_t bytes) const;

  /// Takes memory that KeepSpare has kept, if it is as large; else returns none.
  std::span<std::byte> TakeSpare(std::uint64_t bytes);
  /// Keeps registered memory for the next call of TakeSpare: registering it takes longer than its
  /// use. Returns what is not kept, for the caller to unregister and unmap.
  std::span<std::byte> KeepSpare(std::span<std::byte> memory);

  /// Returns the NUMA node that a device is connected to; nothing where the system does not say.
  /// `devices` is the system's folder of devices.
  std::optional<int> NumaNodeOf(int device, const std::string& devices = "/sys/bus/pci/devices");

 private:
  using Current = CudaCurrent;
  using Event = CudaEvent;
  struct Queued {
    std::shared_ptr<Event> done;
    std::uint64_t bytes = 0;
  };
  /// One direction of a device.
  struct Lane {
    CudaDriver::Handle stream = nullptr;
    std::mutex mutex;  // Guards what follows.
    std::condition_variable changed;
    std::list<Queued> queued;  // In the order of the stream, until a thread saw them reached.
    std::uint64_t bytes = 0;   // Theirs, and of what is about to be queued.
  };
  struct Device {
    explicit Device(const CudaDriver& driver) : kernels(driver) {}
    int ordinal = 0;
    int device = 0;
    bool ready = false;
    std::atomic<bool> compiled = false;
    bool shares_addresses = false;  // Registered memory has one address here and on the device.
    CudaDriver::Handle context = nullptr;
    std::array<Lane, 2> lanes;
    LoadedKernels kernels;
  };
  struct Registered {
    std::uint64_t bytes = 0;
    int device = 0;
  };

  explicit CudaDevices(const CudaDriver& driver) : driver_(driver) {}
  Result<Device*> DeviceAt(int ordinal);
  Result<std::shared_ptr<Event>> QueueOn(Device& device, Direction direction,
                                         std::span<const DeviceMove> moves, Kernels kernels);
  int QueueAll(Device& device, Direction direction, std::span<const DeviceMove> moves,
               Kernels kernels);
  int QueueSorted(Device& device, Direction direction, const SortedMoves& sorted, bool registered,
                  Kernels kernels);
  bool QueueBatch(Direction direction, std::span<const DeviceCopy> copies,
                  CudaDriver::Handle stream);
  int QueueCopies(Direction direction, std::span<const DeviceCopy> copies,
                  CudaDriver::Handle stream) const;
  int QueuePieces(Device& device, Direction direction, std::span<const MovePiece> pieces,
                  Kernels kernels);
  int QueueRows(Direction direction, const DeviceMove& move, CudaDriver::Handle stream) const;
  Status MakeRoom(Lane& lane, std::uint64_t bytes);
  static void NoteReached(Lane& lane, const std::shared_ptr<Event>& event) noexcept;
  [[nodiscard]] bool AreRegistered(std::span<const DeviceMove> moves) const;

  const CudaDriver& driver_;
  std::atomic<bool> has_batches_{true};
  std::atomic<bool> lacks_kernels_{false};
  std::mutex mutex_;  // Guards devices_ and spare_.
  std::map<int, std::unique_ptr<Device>> devices_;
  std::span<std::byte> spare_;
  mutable std::shared_mutex registered_mutex_;  // Guards registered_.
  std::map<const std::byte*, Registered> registered_;
};

/// Host memory that devices copy to and from at full speed: a few MiB that are registered where the
/// driver grants it. The last one is kept for the next.
class PinnedMemory {
 public:
  /// Takes memory. Errors: OutOfSpace.
  static Result<std::unique_ptr<PinnedMemory>> Make(CudaDevices& devices, int device,
                                                    std::uint64_t bytes);
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory();
  [[nodiscard]] std::span<std::byte> bytes() const { return mapping_.first(bytes_); }

 private:
  PinnedMemory(CudaDevices& devices, std::span<std::byte> mapping, std::uint64_t bytes)
      : devices_(devices), mapping_(mapping), bytes_(bytes) {}
  CudaDevices& devices_;
  const std::span<std::byte> mapping_;
  const std::uint64_t bytes_;
};

}  // namespace varve
