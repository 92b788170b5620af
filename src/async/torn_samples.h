/// Detection of tensors that were written to while they were copied.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/cuda_devices.h"
#include "pipeline/file_writer.h"
#include "varve/hash.h"
#include "varve/status.h"

namespace varve {

/// Samples of every segment that is tensor memory: its first and last 256 bytes, and pieces of 256
/// bytes in between, one for each MiB. An optimizer step changes most elements, so the samples find
/// it. They do not find a write to a single element between two samples.
class TornSamples {
 public:
  /// Takes the samples. Those on devices are only queued, behind the work that was queued before
  /// AwaitDeviceWork: the caller does not wait for that work. `segments` must outlive this. Errors:
  /// CudaDevices::Queue's.
  static Result<TornSamples> Take(std::span<const FileSegment> segments);
  TornSamples(TornSamples&&) = default;
  TornSamples(const TornSamples&) = delete;
  TornSamples& operator=(const TornSamples&) = delete;
  TornSamples& operator=(TornSamples&&) = delete;
  ~TornSamples() { Wait(); }

  /// Waits for what is queued. Must be called before the tensors are freed.
  void Wait() const;

  /// Takes the samples again and compares. Errors: FailedPrecondition naming the first segment that
  /// differs; CudaDevices::Move's.
  Status Compare(const std::function<std::string(std::uint32_t owner)>& name_of) const;

 private:
  explicit TornSamples(std::span<const FileSegment> segments) : segments_(segments) {}
  [[nodiscard]] std::vector<DeviceMove> SampleMoves(std::span<std::byte> out) const;
  Status QueueOnDevices();

  std::span<const FileSegment> segments_;
  std::vector<Hash128> hashes_;  // Of segments in host memory.
  /// Of segments on devices, one behind the other: half for the samples before the copy, half for
  /// those after it.
  std::unique_ptr<PinnedMemory> memory_;
  std::shared_ptr<const CudaDevices::Work> work_;
};

}  // namespace varve
