#include "load/destinations.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <new>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/time_source.h"
#include "device/cuda_devices.h"
#include "pipeline/buffer_pool.h"
#include "pipeline/device_fetch.h"
#include "tensor/box.h"
#include "tensor/memory_place.h"
#include "tensor/region.h"

namespace varve {
namespace {

std::string Named(const TargetTensor& target) { return "tensor \"" + target.fqn + "\""; }

auto Place(const TargetTensor& target) { return PlaceOf(target, target.data, target.strides); }

Status DifferentValues(const TargetTensor& a, const TargetTensor& b) {
  return InvalidArgument(Named(a) + " and " + Named(b) +
                         " of the destination share memory, and the checkpoint holds different "
                         "values for them; load into copies, or leave one of them out");
}

/// A target that is not empty, and where it lies.
struct Placed {
  const TargetTensor* target = nullptr;
  StridedMemory memory;
  MemoryRange span;
};

bool SameContent(const Chunk& a, const Chunk& b) {
  const bool hashed = a.content != Hash128{} && a.content == b.content;
  return a.box == b.box && a.strides == b.strides && a.conj == b.conj && a.neg == b.neg &&
         (a.extent == b.extent || hashed);
}

/// Returns true when places or hashes prove that the same values are stored for two targets of the
/// same memory.
bool StoredAlike(CheckpointReader& reader, const TargetTensor& a, const TargetTensor& b) {
  const TensorMetadata* const stored_a = reader.metadata().FindTensor(a.fqn);
  const TensorMetadata* const stored_b = reader.metadata().FindTensor(b.fqn);
  if (stored_a == nullptr || stored_b == nullptr || a.box != b.box ||
      stored_a->dtype != stored_b->dtype || stored_a->shape != stored_b->shape) {
    return false;
  }
  const auto same = [](const TensorMetadata& one, const TensorMetadata& other) {
    return std::equal(one.chunks.begin(), one.chunks.end(), other.chunks.begin(),
                      other.chunks.end(), SameContent);
  };
  if (same(*stored_a, *stored_b)) {
    return true;  // In one place.
  }
  const auto hashed_a = reader.WithHashes(*stored_a);
  const auto hashed_b = reader.WithHashes(*stored_b);
  return hashed_a.ok() && hashed_b.ok() && same(*hashed_a, *hashed_b);
}

/// Returns those of a cluster that share a byte with another.
std::vector<const Placed*> Sharing(const std::vector<const Placed*>& cluster) {
  struct Owned {
    MemoryRange range;
    std::size_t owner = 0;
  };
  std::vector<Owned> all;
  for (std::size_t i = 0; i < cluster.size(); ++i) {
    for (const MemoryRange& range : RangesOf(cluster[i]->memory)) {
      all.push_back({range, i});
    }
  }
  std::sort(all.begin(), all.end(),
            [](const Owned& a, const Owned& b) { return a.range.begin < b.range.begin; });
  std::set<std::size_t> sharing;
  std::size_t furthest = 0;
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (all[i].range.begin < all[furthest].range.end) {
      sharing.insert({all[i].owner, all[furthest].owner});
    }
    if (all[i].range.end > all[furthest].range.end) {
      furthest = i;
    }
  }
  std::vector<const Placed*> found;
  found.reserve(sharing.size());
  for (const std::size_t i : sharing) {
    found.push_back(cluster[i]);
  }
  return found;
}

/// Returns the first of `size` bytes that is known and differs.
std::optional<std::size_t> FirstDifference(const std::byte* image, const unsigned char* known,
                                           const std::byte* loaded, std::size_t size) {
  const bool none_known = std::memchr(known, 1, size) == nullptr;
  if (none_known || std::memcmp(image, loaded, size) == 0) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < size; ++i) {
    if (known[i] != 0 && image[i] != loaded[i]) {
      return i;
    }
  }
  return std::nullopt;
}

/// Returns the first of the targets that covers a byte, which one of them does.
const Placed* OwnerOf(const std::byte* at, const std::vector<const Placed*>& placed) {
  return *std::find_if(placed.begin(), placed.end(), [at](const Placed* candidate) {
    const auto ranges = RangesOf(candidate->memory);
    return std::any_of(ranges.begin(), ranges.end(), [at](const MemoryRange& range) {
      return range.begin <= at && at < range.end;
    });
  });
}

/// Loads targets that share memory into an image of that memory, one after the other, and compares
/// what two of them would put at the same place.
Status CompareValues(CheckpointReader& reader, const std::vector<const Placed*>& sharing,
                     const LoadOptions& options) {
  MemoryRange span = sharing.front()->span;
  for (const Placed* placed : sharing) {
    span.begin = std::min(span.begin, placed->span.begin, std::less<>());
    span.end = std::max(span.end, placed->span.end, std::less<>());
  }
  const auto bytes = static_cast<std::size_t>(span.end - span.begin);
  std::vector<std::byte> image(bytes);
  std::vector<std::byte> loaded(bytes);
  std::vector<unsigned char> known(bytes);  // 1 for the bytes of `image` that some target has.
  LoadOptions quiet = options;
  quiet.progress = {};
  for (std::size_t i = 0; i < sharing.size(); ++i) {
    TargetTensor elsewhere = *sharing[i]->target;
    elsewhere.cuda.reset();
    elsewhere.data = loaded.data() + (static_cast<const std::byte*>(elsewhere.data) - span.begin);
    VARVE_RETURN_IF_ERROR(WithoutDestination(reader.ReadTensors({&elsewhere, 1}, quiet).status()));
    for (const MemoryRange& range : RangesOf(sharing[i]->memory)) {
      const auto at = static_cast<std::size_t>(range.begin - span.begin);
      const auto size = static_cast<std::size_t>(range.end - range.begin);
      const auto other = FirstDifference(&image[at], &known[at], &loaded[at], size);
      if (other) {
        return DifferentValues(*OwnerOf(range.begin + *other, sharing)->target,
                               *sharing[i]->target);
      }
      std::memcpy(&image[at], &loaded[at], size);
      std::memset(&known[at], 1, size);
    }
  }
  return Status::Ok();
}

/// Checks targets whose spans overlap, one after the other.
Status CheckCluster(CheckpointReader& reader, const std::vector<const Placed*>& cluster,
                    const LoadOptions& options) {
  std::vector<const Placed*> distinct;
  std::map<std::tuple<const void*, Dims, Strides, DType>, const Placed*> first;
  for (const Placed* placed : cluster) {
    const auto [found, added] = first.try_emplace({placed->memory.data, placed->memory.box.sizes,
                                                   placed->memory.strides, placed->target->dtype},
                                                  placed);
    if (added || !StoredAlike(reader, *found->second->target, *placed->target)) {
      distinct.push_back(placed);
    }
  }
  const std::vector<const Placed*> sharing = Sharing(distinct);
  if (sharing.empty()) {
    return Status::Ok();
  }
  try {
    return CompareValues(reader, sharing, options);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfSpace,
                  "no memory to compare what is stored for " + Named(*sharing[0]->target) +
                      " and " + Named(*sharing[1]->target) +
                      ", which share memory in the destination; load into copies")
        .With({.system_error = ENOMEM});
  }
}

/// A range of addresses.
struct Addresses {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

/// Returns the memory of this process that may not be written to, in order; none where /proc does
/// not tell.
std::vector<Addresses> ReadOnlyMemory() {
  const auto address = [](std::string_view digits) {
    std::uintptr_t value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    return value;
  };
  std::vector<Addresses> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {  // "5580c000-5580d000 r--p ...".
    const std::size_t dash = line.find('-');
    const std::size_t space = line.find(' ');
    if (dash < space && space + 2 < line.size() && line[space + 2] != 'w') {
      const std::string_view text = line;
      found.push_back({address(text.substr(0, dash)), address(text.substr(dash + 1))});
    }
  }
  return found;
}

/// Refuses a target in memory that is mapped read-only, which a copy into it would find out by
/// SIGSEGV.
Status CheckWritable(const std::vector<Placed>& placed) {
  const std::vector<Addresses> read_only = ReadOnlyMemory();
  for (const Placed& one : placed) {
    const auto begin = reinterpret_cast<std::uintptr_t>(one.span.begin);
    const auto range =
        std::upper_bound(read_only.begin(), read_only.end(), begin,
                         [](std::uintptr_t at, const Addresses& other) { return at < other.end; });
    if (!one.target->cuda && range != read_only.end() &&
        range->begin < reinterpret_cast<std::uintptr_t>(one.span.end)) {
      return InvalidArgument(Named(*one.target) +
                             ": the destination is in memory that cannot be written to, as that "
                             "of a file that is mapped read-only; load into a copy of it");
    }
  }
  return Status::Ok();
}

}  // namespace

Result<StridedMemory> MemoryOf(const TargetTensor& target) {
  if (!target.strides.empty() && target.strides.size() != target.box.sizes.size()) {
    return InvalidArgument(Named(target) + ": " + std::to_string(target.strides.size()) +
                           " strides for " + std::to_string(target.box.sizes.size()) +
                           " dimensions");
  }
  StridedMemory memory{static_cast<std::byte*>(target.data), target.box,
                       target.strides.empty() ? RowMajorStrides(target.box.sizes) : target.strides,
                       ItemSize(target.dtype)};
  if (memory.data == nullptr && !IsEmpty(memory.box)) {
    return InvalidArgument(Named(target) + ": the destination has no memory");
  }
  if (!target.strides.empty() && OverlapsItself(memory)) {
    return InvalidArgument(Named(target) +
                           ": elements of the destination share memory, as in an expanded or "
                           "unfolded tensor; load into a copy of it");
  }
  return memory;
}

Status CheckDestinations(CheckpointReader& reader, std::span<const TargetTensor> targets,
                         const LoadOptions& options) {
  std::vector<Placed> placed;
  placed.reserve(targets.size());
  for (const TargetTensor& target : targets) {
    if (Status status = CheckBox(target.shape, target.box, ItemSize(target.dtype)); !status.ok()) {
      return status.Annotate(Named(target));
    }
    VARVE_ASSIGN_OR_RETURN(StridedMemory memory, MemoryOf(target));
    if (IsEmpty(memory.box)) {
      continue;
    }
    const MemoryRange span = SpanOf(memory);
    placed.push_back({&target, std::move(memory), span});
  }
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::less<>()(a.span.begin, b.span.begin);
  });
  VARVE_RETURN_IF_ERROR(CheckWritable(placed));
  for (std::size_t begin = 0; begin < placed.size();) {
    std::vector<const Placed*> cluster{&placed[begin]};
    const std::byte* end = placed[begin].span.end;
    std::size_t next = begin + 1;
    for (; next < placed.size() && std::less<>()(placed[next].span.begin, end); ++next) {
      cluster.push_back(&placed[next]);
      end = std::max(end, placed[next].span.end, std::less<>());
    }
    if (cluster.size() > 1) {
      VARVE_RETURN_IF_ERROR(CheckCluster(reader, cluster, options));
    }
    begin = next;
  }
  return Status::Ok();
}

void DropTiedNames(std::span<const TargetTensor> targets, std::span<const TargetTensor> filled,
                   std::vector<std::string>* missing) {
  if (missing->empty()) {
    return;
  }
  std::set<decltype(Place(targets.front()))> places;
  for (const TargetTensor& target : filled) {
    places.insert(Place(target));
  }
  std::map<std::string_view, bool> is_filled;  // Of targets by name: all of them.
  for (const TargetTensor& target : targets) {
    const bool one = !IsEmpty(target.box) && places.contains(Place(target));
    const auto [at, is_new] = is_filled.emplace(target.fqn, one);
    at->second = at->second && one;
  }
  std::erase_if(*missing, [&](const std::string& name) {
    const auto found = is_filled.find(name);
    return found != is_filled.end() && found->second;
  });
}

bool DiffersInSizes(const TensorMetadata& stored, const TargetTensor& target) {
  return stored.shape.size() == target.shape.size() && stored.shape != target.shape;
}

TargetTensor OverlapWith(const Dims& shape, TargetTensor target) {
  if (target.strides.empty()) {
    target.strides = RowMajorStrides(target.box.sizes);  // Those of the whole memory.
  }
  target.shape = shape;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    // The first element of the box stays the first: both tensors begin at index 0.
    const std::uint64_t begin = std::min(target.box.offsets[d], shape[d]);
    target.box.sizes[d] = std::min(target.box.sizes[d], shape[d] - begin);
    target.box.offsets[d] = begin;
  }
  return target;
}

// ---- targets on devices ----

Status AwaitDeviceWork(std::span<const TargetTensor> targets) {
  std::set<std::pair<int, void*>> seen;
  for (const TargetTensor& target : targets) {
    if (target.cuda && seen.emplace(target.cuda->device, target.cuda->stream).second) {
      const auto await = [&]() -> Status {
        VARVE_ASSIGN_OR_RETURN(CudaDevices* const devices, CudaDevices::Get());
        return devices->After(Direction::kToDevice, target.cuda->device, target.cuda->stream);
      };
      VARVE_RETURN_IF_ERROR(await().Annotate(Named(target)));
    }
  }
  return Status::Ok();
}

std::optional<int> DeviceOf(const TargetTensor& target) {
  return target.cuda ? std::optional(target.cuda->device) : std::nullopt;
}

namespace {

/// Copies all bytes of a region through a block that is registered with the driver.
Status PutOnDevice(std::span<const std::byte> bytes, const Region& region, int device) {
  VARVE_ASSIGN_OR_RETURN(CudaDevices* const devices, CudaDevices::Get());
  VARVE_ASSIGN_OR_RETURN(const auto block, BufferPool::Shared().Acquire());
  block.Pin(*devices, device);
  const std::uint64_t most = kPoolBlockBytes / region.item_size() * region.item_size();
  for (std::uint64_t at = 0; at < bytes.size(); at += most) {
    const auto step = bytes.subspan(at, std::min(most, bytes.size() - at));
    std::memcpy(block.data(), step.data(), step.size());
    VARVE_RETURN_IF_ERROR(CopyToDevice(region, device, at, {block.data(), step.size()}));
  }
  return Status::Ok();
}

}  // namespace

Result<ReadToDevice> ReadByHost(CheckpointReader& reader, const TargetTensor& target,
                                const LoadOptions& options) {
  VARVE_ASSIGN_OR_RETURN(const StridedMemory memory, MemoryOf(target));
  std::vector<std::byte> bytes(Volume(target.box.sizes) * memory.item_size);
  TargetTensor host = target;
  host.data = bytes.data();
  host.strides.clear();
  host.cuda.reset();
  ReadToDevice read;
  const auto bytes_read = reader.ReadTensors({&host, 1}, options);
  if (!bytes_read.ok()) {
    return WithDestination(WithoutDestination(bytes_read.status()),
                           "the destination is partly written: tensors that were read before \"" +
                               target.fqn + "\" hold new values");
  }
  read.bytes_read = *bytes_read;
  const TimePoint begin = Now();
  VARVE_RETURN_IF_ERROR(
      PutOnDevice(bytes, Region(target.box, memory, target.box), target.cuda->device)
          .Annotate(Named(target)));
  read.device_seconds = std::chrono::duration<double>(Now() - begin).count();
  read.device_bytes = bytes.size();
  return read;
}

Status WithDestination(const Status& read, const std::string& destination) {
  if (read.ok() || destination.empty()) {
    return read;
  }
  return Status(read.code(), read.message() + "; " + destination)
      .With(read.details())
      .With({.destination = destination});
}

Status WithoutDestination(const Status& read) {
  ErrorDetails details = read.details();
  const std::string text = "; " + std::exchange(details.destination, {});
  std::string message = read.message();
  if (text.size() > 2 && message.ends_with(text)) {
    message.resize(message.size() - text.size());
  }
  return Status(read.code(), std::move(message)).With(std::move(details));
}

}  // namespace varve
