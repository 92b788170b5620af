/// Copies a file's data out of the tensors, in host or device memory, and sums them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/device_fetch.h"
#include "pipeline/file_writer.h"
#include "pipeline/staged_image.h"
#include "varve/status.h"

namespace varve {

/// Threads: Copy may be called by several at once.
class SegmentCopier {
 public:
  /// `parts` are those of `segments`; both must outlive this.
  SegmentCopier(std::span<const FileSegment> segments, const std::vector<StagedPart>& parts,
                std::uint64_t checksum_block_bytes)
      : segments_(segments), parts_(parts), checksum_block_bytes_(checksum_block_bytes) {}

  /// Makes errors name tensors, and lets bytes of devices that go to memory which is not registered
  /// yet pass through a block of `through`, which is: that is as fast as two copies, and the
  /// driver's own way a fifth as fast. Null: they go the driver's own way.
  /// `sums_later`: see Copy.
  void SetUp(std::function<std::string(std::uint32_t owner)> name_of, BufferPool* through,
             bool sums_later = false) {
    fetch_.emplace(std::move(name_of));
    through_ = through;
    sums_later_ = sums_later;
  }

  /// Copies the bytes from `begin` (a multiple of the checksum block) on to `out`, the beginning of
  /// a pool's block of kPoolBlockBytes, and appends the sum of each checksum block of them. With
  /// `sums_later` none is appended where devices have copied all tensors' bytes to their place: the
  /// caller has Sum make the sums, and lets training go on meanwhile. Errors: those of reading a
  /// device, naming tensors.
  Status Copy(std::uint64_t begin, std::span<std::byte> out, std::vector<std::uint32_t>* sums);

  /// Appends the sum of each checksum block of `bytes`, which Copy has copied.
  void Sum(std::span<const std::byte> bytes, std::vector<std::uint32_t>* sums) const;

  /// Returns the bytes that came from devices so far.
  [[nodiscard]] const DeviceFetch& fetch() const { return *fetch_; }

 private:
  [[nodiscard]] std::size_t PartAt(std::uint64_t offset) const;
  [[nodiscard]] bool CopyLiterals(std::uint64_t begin, std::span<std::byte> out) const;
  [[nodiscard]] Result<BufferPool::Lease> LeaseFor(std::span<const FileSegment> segments,
                                                   std::span<std::byte> out) const;

  const std::span<const FileSegment> segments_;
  const std::vector<StagedPart>& parts_;
  const std::uint64_t checksum_block_bytes_;
  std::optional<DeviceFetch> fetch_{std::in_place};
  BufferPool* through_ = nullptr;
  bool sums_later_ = false;
};

}  // namespace varve
