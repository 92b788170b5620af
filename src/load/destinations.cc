#include "load/destinations.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tensor/box.h"
#include "tensor/memory_ranges.h"

namespace varve {
namespace {

std::string Named(const TargetTensor& target) { return "tensor \"" + target.fqn + "\""; }

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

/// Returns true when the index proves that the same values are stored for two targets of the same
/// memory.
bool StoredAlike(const Metadata& metadata, const TargetTensor& a, const TargetTensor& b) {
  const TensorMetadata* stored_a = metadata.FindTensor(a.fqn);
  const TensorMetadata* stored_b = metadata.FindTensor(b.fqn);
  return stored_a != nullptr && stored_b != nullptr && a.box == b.box &&
         stored_a->dtype == stored_b->dtype && stored_a->shape == stored_b->shape &&
         std::equal(stored_a->chunks.begin(), stored_a->chunks.end(), stored_b->chunks.begin(),
                    stored_b->chunks.end(), SameContent);
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
    VARVE_RETURN_IF_ERROR(reader.ReadTensors({&elsewhere, 1}, quiet).status());
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
    if (added || !StoredAlike(reader.metadata(), *found->second->target, *placed->target)) {
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

}  // namespace varve
