// Segments on a device are copied first, all of a block at once, and summed after they have
// arrived. Segments in host memory are copied and summed in one pass. So the pieces of a mixed
// block are still summed in file order. Staging memory that is used for the first time is not
// registered with the driver, and registering it takes longer than the copy: bytes of a device then
// arrive in a block of the pipelines' pool, and the pass that sums them copies them to their place.
// Where the device reaches the place itself, that pass would only sum. Reading what has just
// arrived takes as long as its arrival on a machine with many devices or slow memory (measured on
// 16 cores: 4.9 GB/s a thread), so the training need not wait for it.

#include "pipeline/segment_copier.h"

#include <algorithm>
#include <cstring>

#include "base/checksum.h"
#include "device/cuda_devices.h"

namespace varve {
namespace {

// Strided memory is copied in steps that fit the cache, then summed.
constexpr std::uint64_t kStridedStepBytes = std::uint64_t{128} << 10;

/// Copies bytes [at, at + out.size()) of a segment and extends the checksum over them. `arrived`:
/// where they are already, of a segment on a device; may be `out` itself.
std::uint32_t CopyPart(std::uint32_t crc, const FileSegment& segment, std::uint64_t at,
                       std::span<std::byte> out, const std::byte* arrived) {
  if (segment.device) {
    return arrived == out.data() ? Crc32cExtend(crc, out)
                                 : StreamAndCrc32c(crc, {arrived, out.size()}, out.data());
  }
  if (!segment.region) {
    return CopyAndCrc32c(crc, segment.literal.subspan(at, out.size()), out.data());
  }
  if (const auto source = segment.region->Contiguous(segment.begin + at, out.size())) {
    return StreamAndCrc32c(crc, *source, out.data());
  }
  while (!out.empty()) {
    const std::span<std::byte> step = out.first(std::min(out.size(), kStridedStepBytes));
    segment.region->CopyFromMemory(segment.begin + at, step);
    crc = Crc32cExtend(crc, step);
    at += step.size();
    out = out.subspan(step.size());
  }
  return crc;
}

}  // namespace

std::size_t SegmentCopier::PartAt(std::uint64_t offset) const {
  const auto part = std::partition_point(parts_.begin(), parts_.end(),
                                         [&](const StagedPart& p) { return p.end <= offset; });
  return static_cast<std::size_t>(part - parts_.begin());
}

/// Returns the block that bytes of devices pass through; an empty lease where they need none.
Result<BufferPool::Lease> SegmentCopier::LeaseFor(std::span<const FileSegment> segments,
                                                  std::span<std::byte> out) const {
  VARVE_ASSIGN_OR_RETURN(CudaDevices* const devices, CudaDevices::Get());
  if (through_ == nullptr || devices->IsRegistered(out.data(), out.size())) {
    return BufferPool::Lease();
  }
  VARVE_ASSIGN_OR_RETURN(BufferPool::Lease lease, through_->Acquire());
  // Where that is refused too, a second copy would only cost time.
  return lease.Pin(*devices, *FirstDevice(segments)) ? std::move(lease) : BufferPool::Lease();
}

Status SegmentCopier::Copy(std::uint64_t begin, std::span<std::byte> out,
                           std::vector<std::uint32_t>* sums) {
  std::size_t part = PartAt(begin);
  const std::span<const FileSegment> segments = segments_.subspan(part);
  const std::uint64_t at_first =
      segments.empty() ? 0 : segments.front().bytes - (parts_[part].end - begin);
  BufferPool::Lease through;
  std::byte* arrived = out.data();
  if (DeviceBytesIn(segments, at_first, out.size()) > 0) {
    VARVE_ASSIGN_OR_RETURN(through, LeaseFor(segments, out));
    arrived = through.data() != nullptr ? through.data() : arrived;
    VARVE_RETURN_IF_ERROR(fetch_->Fetch(segments, at_first, {arrived, out.size()}));
    if (sums_later_ && arrived == out.data() && CopyLiterals(begin, out)) {
      return Status::Ok();
    }
  }
  std::uint32_t crc = 0;
  std::uint64_t in_sum = 0;
  for (std::uint64_t done = 0; done < out.size();) {
    const FileSegment& segment = segments_[part];
    const std::uint64_t at = segment.bytes - (parts_[part].end - (begin + done));
    const std::uint64_t step =
        std::min({segment.bytes - at, checksum_block_bytes_ - in_sum, out.size() - done});
    crc = CopyPart(crc, segment, at, out.subspan(done, step), arrived + done);
    done += step;
    in_sum += step;
    if (in_sum == checksum_block_bytes_ || done == out.size()) {
      sums->push_back(crc);
      crc = 0;
      in_sum = 0;
    }
    while (part < parts_.size() && parts_[part].end <= begin + done) {
      ++part;
    }
  }
  return Status::Ok();
}

/// Copies what is literal of the bytes from `begin` on. Returns false where some are tensors in
/// host memory, which are summed as they are copied: a tensor that changes meanwhile is then found.
bool SegmentCopier::CopyLiterals(std::uint64_t begin, std::span<std::byte> out) const {
  for (std::size_t part = PartAt(begin); !out.empty(); ++part) {
    const FileSegment& segment = segments_[part];
    const std::uint64_t rest = parts_[part].end - begin;
    const std::uint64_t step = std::min<std::uint64_t>(rest, out.size());
    if (!segment.device && step > 0) {
      if (segment.region) {
        return false;
      }
      std::memcpy(out.data(), segment.literal.data() + (segment.bytes - rest), step);
    }
    begin += step;
    out = out.subspan(step);
  }
  return true;
}

void SegmentCopier::Sum(std::span<const std::byte> bytes, std::vector<std::uint32_t>* sums) const {
  for (std::size_t at = 0; at < bytes.size(); at += checksum_block_bytes_) {
    const std::size_t size = std::min<std::size_t>(checksum_block_bytes_, bytes.size() - at);
    sums->push_back(Crc32c(bytes.subspan(at, size)));
  }
}

}  // namespace varve
