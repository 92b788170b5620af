#include "save/hf/layout.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/checked.h"
#include "tensor/box.h"
#include "varve/storage.h"

namespace varve {

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, HfFileSize>& file) {
  archive(file.name, file.size);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, HfTensorPlace>& place) {
  archive(place.file, place.begin);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, HfOwnFile>& own) {
  archive(own.file, own.header);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, HfPlacement>& placement) {
  archive.Enum(placement.way, HfWay::kSharedFiles, HfWay::kPieces, "an unknown way to write files");
  archive(placement.files, placement.chunks, placement.own);
}

template void Fields(FieldWriter& archive, const HfPlacement& placement);
template void Fields(FieldReader& archive, HfPlacement& placement);

namespace {

/// Bytes of a file that a rank holds, of one piece.
struct HeldBytes {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t chunk = 0;  ///< As HfPiece::chunk, and so `chunk_begin`.
  std::uint64_t chunk_begin = 0;
};

/// An element of every fragment begins at a multiple of this in the image, so that no block of the
/// image cuts one.
constexpr std::uint64_t kFragmentAlignment = 16;

/// Returns the tensors that are stored, by name: those of chunks, and those without elements.
std::vector<SafetensorsEntry> StoredTensors(const std::vector<LocalPlan>& plans,
                                            const SettledPlan& settled) {
  std::map<std::string_view, const PlannedTensor*> tensors;
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    for (const ChunkAssignment& chunk : settled.ranks[rank].chunks) {
      const PlannedTensor& tensor = plans[rank].tensors[chunk.item];
      tensors[tensor.fqn()] = &tensor;
    }
    for (const PlannedTensor& tensor : plans[rank].tensors) {
      if (Volume(tensor.shape()) == 0) {
        tensors[tensor.fqn()] = &tensor;
      }
    }
  }
  std::vector<SafetensorsEntry> entries;
  entries.reserve(tensors.size());
  for (const auto& [fqn, tensor] : tensors) {
    entries.push_back({tensor->fqn(), tensor->dtype(), tensor->shape()});
  }
  return entries;
}

/// Returns the first dimension of those that lie together in the tensor.
std::size_t FirstDimOfRun(const PlannedTensor& tensor, const Box& box) {
  std::size_t inner = tensor.shape().size();
  while (inner > 0 && box.sizes[inner - 1] == tensor.shape()[inner - 1]) {
    --inner;
  }
  return inner > 0 ? inner - 1 : 0;
}

/// Adds the runs of a chunk: its box is as many of them as it has rows that do not lie together in
/// the tensor.
void AddHeld(std::uint32_t number, const PlannedTensor& tensor, const Box& box,
             const HfTensorPlace& place, std::vector<HeldBytes>* held) {
  const std::size_t dims = tensor.shape().size();
  std::vector<std::uint64_t> steps(dims, ItemSize(tensor.dtype()));  // Bytes in the tensor.
  for (std::size_t d = dims; d-- > 1;) {
    steps[d - 1] = steps[d] * tensor.shape()[d];
  }
  const std::size_t inner = FirstDimOfRun(tensor, box);
  std::uint64_t run = ItemSize(tensor.dtype());
  for (std::size_t d = inner; d < dims; ++d) {
    run *= box.sizes[d];
  }
  std::uint64_t base = place.begin;
  for (std::size_t d = 0; d < dims; ++d) {
    base += box.offsets[d] * steps[d];
  }
  std::vector<std::uint64_t> index(inner, 0);
  for (std::uint64_t done = 0;; done += run) {
    std::uint64_t at = base;
    for (std::size_t d = 0; d < inner; ++d) {
      at += index[d] * steps[d];
    }
    held->push_back({place.file, at, at + run, number, done});
    std::size_t d = inner;
    while (d > 0 && ++index[d - 1] == box.sizes[d - 1]) {
      index[--d] = 0;
    }
    if (d == 0) {
      return;
    }
  }
}

/// Takes what lies together in a file, in order, into a share.
class ShareBuilder {
 public:
  explicit ShareBuilder(const HfPlacement& placement) : placement_(placement) {}

  void AddSpan(const HeldBytes* first, const HeldBytes* last) {
    const std::uint32_t file = first->file;
    const std::uint64_t begin = first->begin;
    const std::uint64_t end = (last - 1)->end;
    const bool to_the_end = end == placement_.files[file].size;
    const std::uint64_t pages_begin = RoundUp(begin, kDirectAlignment);
    const std::uint64_t pages_end = to_the_end ? end : end - end % kDirectAlignment;
    if (pages_begin >= pages_end) {
      Note(first, last, begin, end, &fragments_);
      return;
    }
    Note(first, last, begin, pages_begin, &fragments_);
    Note(first, last, pages_begin, pages_end, &runs_);
    Note(first, last, pages_end, end, &fragments_);
  }

  HfShare Take() {
    HfShare share;
    for (Part& part : runs_) {
      Place(part, &share, &share.runs);
      share.image_bytes = RoundUp(share.image_bytes, kDirectAlignment);
    }
    share.fragments_begin = share.image_bytes;
    for (Part& part : fragments_) {
      Place(part, &share, &share.fragments);
      share.image_bytes = RoundUp(share.image_bytes, kFragmentAlignment);
    }
    return share;
  }

 private:
  struct Part {
    HfRun run;
    std::vector<HfPiece> pieces;
  };

  static void Note(const HeldBytes* first, const HeldBytes* last, std::uint64_t begin,
                   std::uint64_t end, std::vector<Part>* parts) {
    if (begin >= end) {
      return;
    }
    Part part{{first->file, begin, end - begin, 0}, {}};
    for (const HeldBytes* held = first; held != last; ++held) {
      const std::uint64_t from = std::max(begin, held->begin);
      const std::uint64_t to = std::min(end, held->end);
      if (from < to) {
        part.pieces.push_back(
            {held->chunk, held->chunk_begin + (from - held->begin), to - from, 0});
      }
    }
    parts->push_back(std::move(part));
  }

  static void Place(Part& part, HfShare* share, std::vector<HfRun>* runs) {
    part.run.image_begin = share->image_bytes;
    for (HfPiece& piece : part.pieces) {
      piece.image_begin = share->image_bytes;
      share->image_bytes += piece.bytes;
      share->pieces.push_back(piece);
    }
    runs->push_back(part.run);
  }

  const HfPlacement& placement_;
  std::vector<Part> runs_;
  std::vector<Part> fragments_;
};

}  // namespace

std::uint64_t RunsOf(const PlannedTensor& tensor, const Box& box) {
  if (IsEmpty(box)) {
    return 0;
  }
  const std::size_t inner = FirstDimOfRun(tensor, box);
  std::uint64_t runs = 1;
  for (std::size_t d = 0; d < inner; ++d) {
    runs *= box.sizes[d];
  }
  return runs;
}

HfFolder LayOutHfFolder(const std::vector<LocalPlan>& plans, const SettledPlan& settled,
                        std::uint64_t shard_size) {
  HfFolder folder;
  std::map<std::string_view, HfTensorPlace> places;
  std::vector<HfFile> files = DivideIntoHfFiles(StoredTensors(plans, settled), shard_size);
  folder.files.reserve(files.size());  // `places` refers to the names in it.
  for (HfFile& file : files) {
    HfFolder::File& made = folder.files.emplace_back();
    made.name = std::move(file.name);
    made.entries = std::move(file.entries);
    made.header = EncodeSafetensorsHeader(made.entries, kDirectAlignment);
    made.size = made.header.size();
    for (const SafetensorsEntry& entry : made.entries) {
      places[entry.fqn] = {static_cast<std::uint32_t>(folder.files.size() - 1), made.size};
      made.size += entry.bytes();
    }
  }
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    HfPlacement& placement = folder.placements.emplace_back();
    for (const HfFolder::File& file : folder.files) {
      placement.files.push_back({file.name, file.size});
    }
    for (const ChunkAssignment& chunk : settled.ranks[rank].chunks) {
      placement.chunks.push_back(places.at(plans[rank].tensors[chunk.item].fqn()));
    }
  }
  return folder;
}

namespace {

/// Returns all that a rank holds of the files, by place: of the chunks of its assignment, and the
/// headers of its own files.
Result<std::vector<HeldBytes>> HeldBytesOf(const LocalPlan& plan, const RankAssignment& assignment,
                                           const HfPlacement& placement) {
  const auto bad = [] { return Internal("the places of tensors do not fit the rank's plan"); };
  if (placement.chunks.size() != assignment.chunks.size()) {
    return bad();
  }
  std::vector<HeldBytes> held;
  std::uint32_t number = 0;
  for (const ChunkAssignment& chunk : assignment.chunks) {
    const HfTensorPlace& place = placement.chunks[number];
    if (chunk.item >= plan.tensors.size() || place.file >= placement.files.size()) {
      return bad();
    }
    const Box& box = chunk.BoxIn(plan);
    if (!IsEmpty(box)) {
      AddHeld(number, plan.tensors[chunk.item], box, place, &held);
    }
    ++number;
  }
  for (const HfOwnFile& own : placement.own) {
    if (own.file >= placement.files.size()) {
      return bad();
    }
    held.push_back({own.file, 0, own.header.size(), number++, 0});
  }
  std::sort(held.begin(), held.end(), [](const HeldBytes& a, const HeldBytes& b) {
    return std::tie(a.file, a.begin) < std::tie(b.file, b.begin);
  });
  return held;
}

/// Returns true where the share is all bytes of the own files, and no others.
bool FillsOwnFiles(const HfShare& share, const HfPlacement& placement) {
  return share.fragments.empty() &&
         std::equal(share.runs.begin(), share.runs.end(), placement.own.begin(),
                    placement.own.end(), [&](const HfRun& run, const HfOwnFile& own) {
                      return run.file == own.file && run.bytes == placement.files[own.file].size;
                    });
}

}  // namespace

Result<HfShare> ShareOfRank(const LocalPlan& plan, const RankAssignment& assignment,
                            const HfPlacement& placement) {
  VARVE_ASSIGN_OR_RETURN(const auto held, HeldBytesOf(plan, assignment, placement));
  ShareBuilder builder(placement);
  for (std::size_t begin = 0; begin < held.size();) {
    std::size_t end = begin + 1;
    while (end < held.size() && held[end].file == held[begin].file &&
           held[end].begin == held[end - 1].end) {
      ++end;
    }
    builder.AddSpan(&held[begin], held.data() + end);
    begin = end;
  }
  HfShare share = builder.Take();
  if (placement.way == HfWay::kOwnFiles && !FillsOwnFiles(share, placement)) {
    return Internal("the chunks of a rank do not fill the files it writes");
  }
  return share;
}

}  // namespace varve
