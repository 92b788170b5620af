#include "checkpoint/torn_samples.h"

#include <algorithm>
#include <array>

#include "base/checksum.h"

namespace varve {
namespace {

constexpr std::uint64_t kSampleBytes = 256;  // A multiple of every item size.
constexpr std::uint64_t kSampleEvery = std::uint64_t{1} << 20;

Hash128 SampleOf(const FileSegment& segment) {
  Xxh3Stream stream;
  std::array<std::byte, kSampleBytes> buffer;
  const auto add = [&](std::uint64_t at, std::uint64_t size) {
    const std::span<std::byte> out(buffer.data(), size);
    segment.region->CopyFromMemory(at, out);
    stream.Update(out);
  };
  const std::uint64_t size = std::min(kSampleBytes, segment.bytes);
  for (std::uint64_t at = 0; at + size <= segment.bytes; at += kSampleEvery) {
    add(at, size);
  }
  if (segment.bytes > kSampleBytes) {
    add(segment.bytes - size, size);
  }
  return stream.Digest();
}

}  // namespace

TornSamples::TornSamples(std::span<const FileSegment> segments) : segments_(segments) {
  hashes_.reserve(segments.size());
  for (const FileSegment& segment : segments) {
    hashes_.push_back(segment.region ? SampleOf(segment) : Hash128{});
  }
}

Status TornSamples::Compare(const std::function<std::string(std::uint32_t)>& name_of) const {
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i].region && SampleOf(segments_[i]) != hashes_[i]) {
      return FailedPrecondition("tensor \"" + name_of(segments_[i].owner) +
                                "\" was written to while it was being staged; wait until the copy "
                                "has been made before weights change");
    }
  }
  return Status::Ok();
}

}  // namespace varve
