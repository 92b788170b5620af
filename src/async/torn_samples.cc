#include "async/torn_samples.h"

#include <algorithm>
#include <cstring>

#include "pipeline/device_fetch.h"
#include "save/fingerprint.h"

namespace varve {
namespace {

constexpr std::uint64_t kSampleBytes = 256;  // A multiple of every item size.
constexpr std::uint64_t kSampleEvery = std::uint64_t{1} << 20;

/// Returns the samples of a segment: offset and size, bytes.
std::vector<ByteRange> SampledRanges(const FileSegment& segment) {
  const std::uint64_t size = std::min(kSampleBytes, segment.bytes);
  std::vector<ByteRange> ranges;
  for (std::uint64_t at = 0; at + size <= segment.bytes; at += kSampleEvery) {
    ranges.push_back({at, at + size});
  }
  if (segment.bytes > kSampleBytes) {
    ranges.push_back({segment.bytes - size, segment.bytes});
  }
  return ranges;
}

std::uint64_t BytesOf(std::span<const ByteRange> ranges) {
  std::uint64_t bytes = 0;
  for (const ByteRange& range : ranges) {
    bytes += range.end - range.begin;
  }
  return bytes;
}

/// Returns the samples of a segment as ranges of its region's chunk.
std::vector<ByteRange> RangesOfChunk(const FileSegment& segment) {
  std::vector<ByteRange> ranges = SampledRanges(segment);
  for (ByteRange& range : ranges) {
    range = {segment.begin + range.begin, segment.begin + range.end};
  }
  return ranges;
}

bool IsOnDevice(const FileSegment& segment) { return segment.region && segment.device; }

}  // namespace

void TornSamples::Wait() const {
  if (work_ != nullptr) {
    (void)CudaDevices::Wait(*work_);
  }
}

Result<TornSamples> TornSamples::Take(std::span<const FileSegment> segments) {
  TornSamples taken(segments);
  taken.hashes_.reserve(segments.size());
  for (const FileSegment& segment : segments) {
    taken.hashes_.push_back(segment.region && !segment.device
                                ? HashRanges(*segment.region, RangesOfChunk(segment))
                                : Hash128{});
  }
  VARVE_RETURN_IF_ERROR(taken.QueueOnDevices());
  return taken;
}

std::vector<DeviceMove> TornSamples::SampleMoves(std::span<std::byte> out) const {
  std::vector<DeviceMove> moves;
  std::byte* to = out.data();
  for (const FileSegment& segment : segments_) {
    if (IsOnDevice(segment)) {
      const std::vector<ByteRange> ranges = RangesOfChunk(segment);
      AppendSampleMoves(*segment.region, *segment.device, ranges, to, &moves);
      to += BytesOf(ranges);
    }
  }
  return moves;
}

Status TornSamples::QueueOnDevices() {
  std::uint64_t bytes = 0;
  for (const FileSegment& segment : segments_) {
    bytes += IsOnDevice(segment) ? BytesOf(SampledRanges(segment)) : 0;
  }
  if (bytes == 0) {
    return Status::Ok();
  }
  VARVE_ASSIGN_OR_RETURN(CudaDevices* const devices, CudaDevices::Get());
  VARVE_ASSIGN_OR_RETURN(memory_, PinnedMemory::Make(*devices, *FirstDevice(segments_), 2 * bytes));
  VARVE_ASSIGN_OR_RETURN(
      work_, devices->Queue(Direction::kToHost, SampleMoves(memory_->bytes().first(bytes)),
                            CudaDevices::Kernels::kOfBefore));
  return Status::Ok();
}

Status TornSamples::Compare(const std::function<std::string(std::uint32_t)>& name_of) const {
  const auto torn = [&](const FileSegment& segment) {
    return FailedPrecondition("tensor \"" + name_of(segment.owner) +
                              "\" was written to while it was being staged; wait until the copy "
                              "has been made before weights change");
  };
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const FileSegment& segment = segments_[i];
    if (segment.region && !segment.device &&
        HashRanges(*segment.region, RangesOfChunk(segment)) != hashes_[i]) {
      return torn(segment);
    }
  }
  if (memory_ == nullptr) {
    return Status::Ok();
  }
  VARVE_ASSIGN_OR_RETURN(CudaDevices* const devices, CudaDevices::Get());
  VARVE_RETURN_IF_ERROR(CudaDevices::Wait(*work_));
  const std::span<std::byte> before = memory_->bytes();
  const std::span<std::byte> after = before.subspan(before.size() / 2);
  VARVE_RETURN_IF_ERROR(
      devices->Move(Direction::kToHost, SampleMoves(after), CudaDevices::Kernels::kOfBefore));
  std::uint64_t at = 0;
  for (const FileSegment& segment : segments_) {
    if (!IsOnDevice(segment)) {
      continue;
    }
    const std::uint64_t size = BytesOf(SampledRanges(segment));
    if (std::memcmp(before.data() + at, after.data() + at, size) != 0) {
      return torn(segment);
    }
    at += size;
  }
  return Status::Ok();
}

}  // namespace varve
