/// Copies out of the memory of CUDA devices, beside what the training does there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "device/cuda_driver.h"
#include "varve/status.h"

namespace varve {

/// `source` is an address of that device and must not be read by this process; `target` is memory
/// of this process.
struct DeviceCopy {
  int device = 0;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::uint64_t bytes = 0;
};

/// The account of how copies and the training's work are ordered is in cuda_reader.cc. Threads:
/// safe; one thread's Read does not wait for another's. Must end before the memory it has pinned.
class CudaReader {
 public:
  /// Makes a reader. With `pin`, Pin registers memory with the driver. Errors: CudaDriver::Get's.
  static Result<std::unique_ptr<CudaReader>> Make(bool pin);
  CudaReader(const CudaReader&) = delete;
  CudaReader& operator=(const CudaReader&) = delete;
  ~CudaReader();

  /// Orders later reads from `device` behind all work that has been queued on its `stream` so far
  /// (a CUstream; null is the default stream). Does not wait itself. Errors: Unavailable.
  Status After(int device, void* stream);

  /// Makes all copies and waits for them. When this returns, also with an error, no copy is running
  /// any more: the sources may be freed and the targets used. Errors: Unavailable, naming the
  /// device.
  Status Read(std::span<const DeviceCopy> copies);

  /// Registers `memory` with the driver, for copies from any device, and keeps it registered. The
  /// driver copies straight to registered memory, to other memory by way of its own. A second call
  /// for the same memory costs a lookup. Returns whether it is registered: the driver may refuse,
  /// and copies are only slower then. `device` is one that is used anyway: the first use of a
  /// device takes memory there. Not twice at a time for the same memory.
  bool Pin(int device, std::span<std::byte> memory);

 private:
  struct Device {
    int device = 0;
    CudaDriver::Handle context = nullptr;
    CudaDriver::Handle stream = nullptr;
  };

  CudaReader(const CudaDriver& driver, bool pin) : driver_(driver), pin_(pin) {}
  Result<Device> DeviceAt(int ordinal);
  Status ReadFrom(const Device& device, std::span<const DeviceCopy> copies);

  const CudaDriver& driver_;
  const bool pin_;
  std::mutex mutex_;  // Guards all members below.
  std::map<int, Device> devices_;
  std::map<std::byte*, bool> pinned_;  // Or refused.
};

}  // namespace varve
