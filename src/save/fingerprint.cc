#include "save/fingerprint.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/bytes.h"
#include "base/checksum.h"
#include "save/tensor_source.h"
#include "tensor/box.h"

namespace varve {
namespace {

/// Smaller shards are hashed whole.
constexpr std::uint64_t kWholeBytes = std::uint64_t{64} << 10;
constexpr std::uint64_t kSamples = 64;
constexpr std::uint64_t kSampleBytes = 64;  // A cache line, and a multiple of every item size.
/// Strided memory is gathered in steps that stay in the cache.
constexpr std::uint64_t kStepBytes = std::uint64_t{64} << 10;

std::vector<ByteRange> FingerprintRanges(std::uint64_t bytes, CheckReplicas check) {
  if (check == CheckReplicas::kFull || bytes <= kWholeBytes) {
    return {{0, bytes}};
  }
  std::vector<ByteRange> ranges;
  ranges.reserve(kSamples);
  const std::uint64_t spacing = (bytes - kSampleBytes) / (kSamples - 1);
  for (std::uint64_t i = 0; i < kSamples; ++i) {
    const std::uint64_t at = i * spacing;
    const std::uint64_t begin =
        i + 1 == kSamples ? bytes - kSampleBytes : at - at % kSampleBytes;  // One line each.
    ranges.push_back({begin, begin + kSampleBytes});
  }
  return ranges;
}

}  // namespace

Hash128 HashRanges(const Region& region, std::span<const ByteRange> ranges) {
  if (ranges.size() == 1) {
    const ByteRange& range = ranges.front();
    if (const auto memory = region.Contiguous(range.begin, range.end - range.begin)) {
      return Xxh3(*memory);
    }
  }
  // Samples are cache misses, each as long as hashing kilobytes: have them all under way at once.
  for (const ByteRange& range : ranges) {
    if (const auto memory = region.Contiguous(range.begin, range.end - range.begin)) {
      __builtin_prefetch(memory->data());
    }
  }
  Xxh3Stream hash;
  std::vector<std::byte> gathered;
  for (const ByteRange& range : ranges) {
    for (std::uint64_t at = range.begin; at < range.end; at += kStepBytes) {
      const std::uint64_t size = std::min(kStepBytes, range.end - at);
      if (const auto memory = region.Contiguous(at, size)) {
        hash.Update(*memory);
        continue;
      }
      gathered.resize(size);
      region.CopyFromMemory(at, gathered);
      hash.Update(gathered);
    }
  }
  return hash.Digest();
}

// Half of the hash: plans are sent, and 64 bits tell replicas apart as surely.
std::uint64_t Fingerprint(const Region& region, CheckReplicas check) {
  const Hash128 hash = HashRanges(region, FingerprintRanges(region.bytes(), check));
  std::uint64_t half = 0;
  for (std::size_t byte = 0; byte < sizeof(half); ++byte) {
    half = half << 8 | hash.bytes[byte];
  }
  return half;
}

void AddFingerprints(const State& state, CheckReplicas check, LocalPlan* plan) {
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    const SourceTensor& source = state.tensors[i];
    if (!std::holds_alternative<HostMemory>(source.source) || IsEmpty(source.box)) {
      continue;
    }
    const StridedMemory memory = MemoryOf(source.source, source.dtype, source.box);
    plan->tensors[i].fingerprint = Fingerprint(Region(source.box, memory, source.box), check);
  }
}

}  // namespace varve
