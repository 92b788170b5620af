/// The training of a simulated run: tensors on devices, and kernels that write and read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "sim/device_model.h"

namespace varve::sim {

/// A tensor of a device, one run of bytes or several rows. All of it holds one value; what lies
/// between its rows holds another one.
struct DeviceTensor {
  int device = 0;
  CudaDriver::Handle stream = nullptr;  ///< The one that its kernels are queued on.
  std::uint64_t begin = 0;              ///< Of its memory.
  std::uint64_t extent = 0;
  std::uint64_t rows = 1;
  std::uint64_t row_bytes = 0;
  std::uint64_t pitch = 0;
  std::uint64_t value = 0;   ///< When all that is queued has run.
  std::uint64_t around = 0;  ///< The value between the rows.
  bool is_saved = false;     ///< A save has begun and is not staged: the training may only read it.
  bool is_loaded = false;    ///< A load has begun and not returned: the training leaves it alone.
  [[nodiscard]] bool is_free() const { return !is_saved && !is_loaded; }
};

class DeviceTraining {
 public:
  /// Both pointers must stay valid. `has_large`: the first two tensors of a device are long
  /// enough for the engine that copies.
  DeviceTraining(test::Random* random, DeviceModel* model, int devices, bool has_large);

  [[nodiscard]] std::deque<DeviceTensor>& tensors() { return tensors_; }
  [[nodiscard]] std::uint64_t NewValue() { return ++last_value_; }

  /// Queues a kernel or two.
  void Work();
  /// Queues a kernel that writes a new value.
  void Write(DeviceTensor* tensor);
  /// Queues a kernel that demands the value that the tensor must hold by then.
  void Read(const DeviceTensor& tensor);
  /// Frees a tensor and gives its memory to another one, of any shape, which is written at once.
  void Reuse(DeviceTensor* tensor);
  /// Goes on with a tensor on any stream, which is not made to wait for anything.
  void MoveToAnyStream(DeviceTensor* tensor);

  /// Blames what the tensors' memory, and what lies around them, must not hold. Nothing may be
  /// queued any more.
  void Judge() const;

 private:
  void AddTensors(int device, bool has_large);
  void DrawShape(DeviceTensor* tensor);
  void QueueWrite(const DeviceTensor& tensor);
  CudaDriver::Handle AnyStream(int device);

  test::Random& random_;
  DeviceModel& model_;
  std::vector<std::vector<CudaDriver::Handle>> streams_;  // Of each device.
  std::deque<DeviceTensor> tensors_;
  std::uint64_t last_value_ = 0;
};

}  // namespace varve::sim
