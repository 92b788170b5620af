#include "async/torn_samples.h"

#include <algorithm>

#include "base/checksum.h"
#include "pipeline/segment_copier.h"
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

Result<Hash128> SampleOf(const FileSegment& segment, CudaReader* reader) {
  const std::vector<ByteRange> ranges = SampledRanges(segment);
  if (!segment.device) {
    std::vector<ByteRange> of_chunk = ranges;
    for (ByteRange& range : of_chunk) {
      range = {segment.begin + range.begin, segment.begin + range.end};
    }
    return HashRanges(*segment.region, of_chunk);
  }
  if (reader == nullptr) {
    return Internal("a tensor on a device is to be sampled by what cannot read devices");
  }
  std::vector<std::byte> samples(ranges.size() * kSampleBytes);
  std::vector<DeviceCopy> copies;
  std::size_t filled = 0;
  for (const ByteRange& range : ranges) {
    const std::span<std::byte> out(samples.data() + filled, range.end - range.begin);
    AppendDeviceCopies(segment, range.begin, out, &copies);
    filled += out.size();
  }
  VARVE_RETURN_IF_ERROR(reader->Read(copies));
  return Xxh3(std::span(samples).first(filled));
}

}  // namespace

Result<TornSamples> TornSamples::Take(std::span<const FileSegment> segments, CudaReader* reader) {
  TornSamples taken(segments, reader);
  taken.hashes_.reserve(segments.size());
  for (const FileSegment& segment : segments) {
    Hash128 hash;
    if (segment.region) {
      VARVE_ASSIGN_OR_RETURN(hash, SampleOf(segment, reader));
    }
    taken.hashes_.push_back(hash);
  }
  return taken;
}

Status TornSamples::Compare(const std::function<std::string(std::uint32_t)>& name_of) const {
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (!segments_[i].region) {
      continue;
    }
    VARVE_ASSIGN_OR_RETURN(const Hash128 hash, SampleOf(segments_[i], reader_));
    if (hash != hashes_[i]) {
      return FailedPrecondition("tensor \"" + name_of(segments_[i].owner) +
                                "\" was written to while it was being staged; wait until the copy "
                                "has been made before weights change");
    }
  }
  return Status::Ok();
}

}  // namespace varve
