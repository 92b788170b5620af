#include "save/fingerprint.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/checked.h"
#include "base/checksum.h"
#include "device/cuda_devices.h"
#include "pipeline/buffer_pool.h"
#include "pipeline/device_fetch.h"
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

/// Returns half of a hash: plans are sent, and 64 bits tell replicas apart as surely. Never a number
/// that says that there is none.
std::uint64_t HalfOf(const Hash128& hash) {
  std::uint64_t half = 0;
  for (std::size_t byte = 0; byte < sizeof(half); ++byte) {
    half = half << 8 | hash.bytes[byte];
  }
  return std::clamp(half, std::uint64_t{1}, kUnhashed - 1);
}

std::vector<ByteRange> FingerprintRanges(std::uint64_t bytes, CheckReplicas check) {
  if (check == CheckReplicas::kFull || bytes <= kWholeBytes) {
    return {{0, bytes}};
  }
  std::vector<ByteRange> ranges;
  ranges.reserve(kSamples);
  // One line each, and evenly spaced: a device copies them in one go. The last one is the end.
  const std::uint64_t exact = (bytes - kSampleBytes) / (kSamples - 1);
  const std::uint64_t spacing = exact - exact % kSampleBytes;
  for (std::uint64_t i = 0; i < kSamples; ++i) {
    const std::uint64_t begin = i + 1 == kSamples ? bytes - kSampleBytes : i * spacing;
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

std::uint64_t Fingerprint(const Region& region, CheckReplicas check) {
  return HalfOf(HashRanges(region, FingerprintRanges(region.bytes(), check)));
}

namespace {

/// Shards on devices, whose samples are copied to a block together.
class DeviceSamples {
 public:
  explicit DeviceSamples(CheckReplicas check) : check_(check) {}

  /// Adds a shard on a device. Errors: Flush's.
  Status Add(const ShardToHash& shard) {
    const Region& region = shard.region;
    const int device = *shard.device;
    const std::vector<ByteRange> ranges = FingerprintRanges(region.bytes(), check_);
    std::uint64_t bytes = 0;
    for (const ByteRange& range : ranges) {
      bytes += range.end - range.begin;
    }
    if (bytes > kPoolBlockBytes) {
      VARVE_RETURN_IF_ERROR(Flush());
      return HashWhole(region, device, shard.fingerprint).Annotate(NameOf(shard.name, 1));
    }
    if (used_ + bytes > kPoolBlockBytes) {
      VARVE_RETURN_IF_ERROR(Flush());
    }
    VARVE_RETURN_IF_ERROR(TakeBlock(device));
    AppendSampleMoves(region, device, ranges, block_.data() + used_, &moves_);
    shards_.push_back({shard.fingerprint, used_, bytes, shard.name});
    used_ += RoundUp(bytes, kSampleBytes);
    return Status::Ok();
  }

  /// Copies and hashes what has been added. Errors: CudaDevices::Move's.
  Status Flush() {
    if (!moves_.empty()) {
      VARVE_ASSIGN_OR_RETURN(CudaDevices* const devices, CudaDevices::Get());
      // Whole shards may be strided, and many rows; samples are few.
      const auto kernels = check_ == CheckReplicas::kFull ? CudaDevices::Kernels::kCompile
                                                          : CudaDevices::Kernels::kOfBefore;
      VARVE_RETURN_IF_ERROR(devices->Move(Direction::kToHost, moves_, kernels)
                                .Annotate(NameOf(shards_.front().name, shards_.size())));
    }
    for (const Shard& shard : shards_) {
      *shard.out = HalfOf(Xxh3({block_.data() + shard.begin, shard.bytes}));
    }
    moves_.clear();
    shards_.clear();
    used_ = 0;
    return Status::Ok();
  }

 private:
  struct Shard {
    std::uint64_t* out = nullptr;
    std::uint64_t begin = 0;  // In the block.
    std::uint64_t bytes = 0;
    std::string_view name;
  };

  static std::string NameOf(std::string_view first, std::size_t count) {
    return "tensor \"" + std::string(first) + "\"" +
           (count > 1 ? " and " + std::to_string(count - 1) + " more" : "");
  }

  /// Takes the one block that all shards pass through: who holds one waits for no other.
  Status TakeBlock(int device) {
    if (block_.data() == nullptr) {
      VARVE_ASSIGN_OR_RETURN(block_, BufferPool::Shared().Acquire());
      VARVE_ASSIGN_OR_RETURN(CudaDevices* const devices, CudaDevices::Get());
      block_.Pin(*devices, device);
    }
    return Status::Ok();
  }

  Status HashWhole(const Region& region, int device, std::uint64_t* out_hash) {
    VARVE_RETURN_IF_ERROR(TakeBlock(device));
    const std::uint64_t step = kPoolBlockBytes / region.item_size() * region.item_size();
    Xxh3Stream hash;
    for (std::uint64_t at = 0; at < region.bytes(); at += step) {
      const std::span<std::byte> out(block_.data(), std::min(step, region.bytes() - at));
      VARVE_RETURN_IF_ERROR(CopyFromDevice(region, device, at, out));
      hash.Update(out);
    }
    *out_hash = HalfOf(hash.Digest());
    return Status::Ok();
  }

  const CheckReplicas check_;
  BufferPool::Lease block_;
  std::uint64_t used_ = 0;
  std::vector<DeviceMove> moves_;
  std::vector<Shard> shards_;
};

}  // namespace

void AppendSampleMoves(const Region& region, int device, std::span<const ByteRange> ranges,
                       std::byte* out, std::vector<DeviceMove>* moves) {
  // Samples of memory in one piece are a plane, as long as they are evenly spaced.
  for (std::size_t i = 0; i < ranges.size();) {
    const std::uint64_t size = ranges[i].end - ranges[i].begin;
    std::size_t end = i + 1;
    const std::uint64_t step = end < ranges.size() ? ranges[end].begin - ranges[i].begin : 0;
    while (end < ranges.size() && ranges[end].end - ranges[end].begin == size &&
           ranges[end].begin - ranges[end - 1].begin == step) {
      ++end;
    }
    const std::uint64_t span = ranges[end - 1].end - ranges[i].begin;
    const auto memory = region.Contiguous(ranges[i].begin, span);
    if (!memory) {
      end = i + 1;
      AppendMoves(region, device, ranges[i].begin, {out, size}, moves);
    } else {
      DeviceMove move;
      move.device = device;
      move.on_device = const_cast<std::byte*>(memory->data());
      move.on_host = out;
      move.row_bytes = size;
      move.inner = end - i;
      move.count = move.inner;
      move.device_inner = static_cast<std::int64_t>(step);
      move.host_inner = static_cast<std::int64_t>(size);
      moves->push_back(move);
    }
    out += size * (end - i);
    i = end;
  }
}

Status FillFingerprints(std::span<const ShardToHash> shards, CheckReplicas check) {
  DeviceSamples on_devices(check);
  const auto fill = [&]() -> Status {
    for (const ShardToHash& shard : shards) {
      if (shard.device) {
        VARVE_RETURN_IF_ERROR(on_devices.Add(shard));
      } else {
        *shard.fingerprint = Fingerprint(shard.region, check);
      }
    }
    return on_devices.Flush();
  };
  return fill().Annotate("compare the replicas of tensors on devices");
}

void LeaveOutFingerprints(int ranks, LocalPlan* plan) {
  for (PlannedTensor& item : plan->tensors) {
    if (item.fingerprint == 0 && !IsEmpty(item.box) &&
        Volume(item.box.sizes) <= Volume(item.shape()) / static_cast<std::uint64_t>(ranks)) {
      item.fingerprint = kUnhashed;
    }
  }
}

void WantAllFingerprints(LocalPlan* plan) {
  for (PlannedTensor& item : plan->tensors) {
    item.fingerprint = item.fingerprint == kUnhashed ? 0 : item.fingerprint;
  }
}

Status AddFingerprints(const State& state, CheckReplicas check, LocalPlan* plan,
                       const ComparedItems* shared) {
  std::vector<ShardToHash> shards;
  const auto add = [&](std::size_t i) {
    const SourceTensor& source = state.tensors[i];
    std::uint64_t& fingerprint = plan->tensors[i].fingerprint;
    if (fingerprint == 0 && !IsProduced(source.source) && !IsEmpty(source.box)) {
      const StridedMemory memory = MemoryOf(source.source, source.dtype, source.box);
      shards.push_back({Region(source.box, memory, source.box), source.fqn, DeviceOf(source.source),
                        &fingerprint});
    }
  };
  if (shared != nullptr) {
    shared->ForEachShared(state.tensors.size(),
                          [&](std::size_t item, std::uint64_t /*group*/) { add(item); });
  } else {
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
      add(i);
    }
  }
  return FillFingerprints(shards, check);
}

}  // namespace varve
