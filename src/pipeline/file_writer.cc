// One thread, the caller's, fills blocks in file order: copy, checksum and hash touch each byte
// while it is in the cache. Writer threads take filled blocks from a bounded queue and hand the
// memory back to the pool, so that filling waits for the disk and never the other way round, and a
// save of any size lives in a ring of `writes_in_flight` + 3 blocks: those being written, two that
// are queued and the one being filled. What a block has of devices is copied to it first, in one
// call, while the blocks before it are written: the ring is registered with the driver.

#include "pipeline/file_writer.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/checked.h"
#include "base/checksum.h"
#include "device/cuda_devices.h"
#include "pipeline/device_fetch.h"

namespace varve {
namespace {

/// Fills blocks with segment bytes, keeping the running checksums where they are wanted.
class Filler {
 public:
  Filler(std::span<const FileSegment> segments, const WriteSegmentsOptions& options)
      : segments_(segments),
        block_bytes_(options.block_bytes),
        sums_(options.sums),
        fetch_(options.name_of) {
    Open();
  }

  [[nodiscard]] bool done() const { return segment_ == segments_.size(); }

  /// Fills up to `capacity` bytes; returns how many. Errors: those of a producer.
  Result<std::uint64_t> Fill(std::byte* target, std::uint64_t capacity) {
    if (!done()) {
      VARVE_RETURN_IF_ERROR(fetch_.Fetch(segments_.subspan(segment_), at_, {target, capacity}));
    }
    std::uint64_t filled = 0;
    std::uint64_t produced = 0;  // Bytes from `target` on that a producer has filled ahead.
    while (filled < capacity && !done()) {
      const FileSegment& segment = segments_[segment_];
      // A step ends with the segment, the checksum block or the buffer, whichever is first, and
      // fits the cache, so that checksum and hash find the bytes still there.
      const std::uint64_t step =
          std::min({segment.bytes - at_, block_bytes_ - in_block_, capacity - filled, kStepBytes});
      const std::span<std::byte> out(target + filled, step);
      if (segment.produce && !segment.region && produced <= filled) {
        // At once as far as it goes: a producer's call may be a read.
        const std::uint64_t ahead = std::min(segment.bytes - at_, capacity - filled);
        VARVE_RETURN_IF_ERROR(fetch_.Produce(segment, at_, {target + filled, ahead}));
        produced = filled + ahead;
      }
      Copy(segment, out);
      if (sums_) {
        Sum(segment, out);
      }
      filled += step;
      at_ += step;
      in_block_ += step;
      if (in_block_ == block_bytes_) {
        CloseBlock();
      }
      if (at_ == segment.bytes) {
        Close();
      }
    }
    return filled;
  }

  WrittenSegments Take() {
    if (in_block_ > 0) {
      CloseBlock();
    }
    result_.device_bytes = fetch_.device_bytes();
    result_.pageable_bytes = fetch_.pageable_bytes();
    return std::move(result_);
  }

 private:
  static constexpr std::uint64_t kStepBytes = std::uint64_t{256} << 10;

  void Copy(const FileSegment& segment, std::span<std::byte> out) {
    if (segment.region && segment.device) {
      return;  // It has arrived.
    }
    if (segment.region) {
      segment.region->CopyFromMemory(segment.begin + at_, out);
    } else if (!segment.produce) {
      std::memcpy(out.data(), segment.literal.data() + at_, out.size());
    }
  }

  void Sum(const FileSegment& segment, std::span<const std::byte> out) {
    crc_ = Crc32cExtend(crc_, out);
    if (!segment.is_content()) {
      return;
    }
    if (out.size() == segment.bytes) {
      whole_ = Xxh3(out);
      return;
    }
    if (at_ == 0) {
      stream_.Reset();
    }
    stream_.Update(out);
  }

  /// Moves to the first segment from `segment_` on that has bytes.
  void Open() {
    while (!done() && segments_[segment_].bytes == 0) {
      if (sums_ && segments_[segment_].is_content()) {
        result_.contents.push_back(Xxh3({}));
      }
      ++segment_;
    }
  }

  void Close() {
    if (sums_ && segments_[segment_].is_content()) {
      result_.contents.push_back(whole_ ? *whole_ : stream_.Digest());
    }
    whole_.reset();
    at_ = 0;
    ++segment_;
    Open();
  }

  void CloseBlock() {
    if (sums_) {
      result_.block_crc32c.push_back(crc_);
    }
    crc_ = 0;
    in_block_ = 0;
  }

  std::span<const FileSegment> segments_;
  std::uint64_t block_bytes_;
  bool sums_;
  std::size_t segment_ = 0;
  std::uint64_t at_ = 0;        // Bytes of the segment done.
  std::uint64_t in_block_ = 0;  // Bytes of the checksum block done.
  std::uint32_t crc_ = 0;
  Xxh3Stream stream_;
  std::optional<Hash128> whole_;
  DeviceFetch fetch_;
  WrittenSegments result_;
};

}  // namespace

Result<WrittenSegments> WriteSegments(WritableFile& file, std::uint64_t data_begin,
                                      std::span<const FileSegment> segments, BufferPool& pool,
                                      const WriteSegmentsOptions& options) {
  std::uint64_t total = 0;
  for (const FileSegment& segment : segments) {
    total += segment.bytes;
  }
  Filler filler(segments, options);
  BlockWriters writers(file, options, DivideUp(total, kPoolBlockBytes) + 1);
  std::uint64_t offset = data_begin;
  const std::optional<int> device = FirstDevice(segments);
  const auto devices = device ? CudaDevices::Get() : Unimplemented("no device");
  while (!filler.done()) {
    auto memory = pool.Acquire();
    if (!memory.ok()) {
      writers.Fail(memory.status());
      break;
    }
    if (devices.ok()) {
      memory->Pin(**devices, *device);
    }
    std::byte* const target = memory->data();
    // The first block ends at a multiple of the size of blocks: then those behind it are the parts
    // of an upload, which are sent without another copy.
    const auto filled = filler.Fill(target, kPoolBlockBytes - offset % kPoolBlockBytes);
    if (!filled.ok()) {
      writers.Fail(filled.status());
      break;
    }
    // Direct writes go out in whole pages: what follows the data in its last page must be zero.
    std::memset(target + *filled, 0, RoundUp(*filled, kDirectAlignment) - *filled);
    if (!writers.Push(
            {.data = target, .offset = offset, .bytes = *filled, .memory = std::move(*memory)})) {
      break;
    }
    offset += *filled;
  }
  VARVE_RETURN_IF_ERROR(writers.Finish());
  return filler.Take();
}

}  // namespace varve
