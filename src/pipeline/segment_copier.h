/// Copies a file's data out of the tensors, in host or device memory, and sums them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda_reader.h"
#include "pipeline/file_writer.h"
#include "pipeline/staged_image.h"
#include "varve/status.h"

namespace varve {

/// The access to segments on devices, which this process cannot read itself.
struct DeviceAccess {
  CudaReader* reader = nullptr;
  /// The tensor with that number, for messages.
  std::function<std::string(std::uint32_t owner)> name_of;
};

/// Appends the copies that fill `out` with
void AppendDeviceCopies(const FileSegment& segment, std::uint64_t at, std::span<std::byte> out,
                        std::vector<DeviceCopy>* copies);

/// Threads: Copy may be called by several at once.
class SegmentCopier {
 public:
  /// `parts` are those of `segments`; both must outlive this.
  SegmentCopier(std::span<const FileSegment> segments, const std::vector<StagedPart>& parts,
                std::uint64_t checksum_block_bytes)
      : segments_(segments), parts_(parts), checksum_block_bytes_(checksum_block_bytes) {}

  void SetDevices(DeviceAccess devices) { devices_ = std::move(devices); }

  /// Copies the bytes from `begin` (a multiple of the checksum block) on to `out`, the beginning of
  /// a pool's block of kPoolBlockBytes, and appends the sum of each checksum block of them. Errors:
  /// those of reading a device, naming tensors; Internal for a segment on a device without access.
  Status Copy(std::uint64_t begin, std::span<std::byte> out, std::vector<std::uint32_t>* sums);

  /// Returns the bytes copied from devices so far; pageable_bytes() those of them that went to
  /// memory that the driver had not registered.
  [[nodiscard]] std::uint64_t device_bytes() const { return device_bytes_; }
  [[nodiscard]] std::uint64_t pageable_bytes() const { return pageable_bytes_; }

 private:
  [[nodiscard]] std::size_t PartAt(std::uint64_t offset) const;
  Status CopyFromDevices(std::uint64_t begin, std::span<std::byte> out);

  const std::span<const FileSegment> segments_;
  const std::vector<StagedPart>& parts_;
  const std::uint64_t checksum_block_bytes_;
  DeviceAccess devices_;
  std::atomic<std::uint64_t> device_bytes_ = 0;
  std::atomic<std::uint64_t> pageable_bytes_ = 0;
};

}  // namespace varve
