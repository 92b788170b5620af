#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "format/chunk_grid.h"
#include "format/manifest.h"
#include "format/variants.h"
#include "tensor/box.h"
#include "tensor/overlap.h"

namespace varve {
namespace {

Status CheckAgreement(const FileIdentity& first, const FileIdentity& other) {
  if (other.save_id != first.save_id) {
    return DataLoss("files of different saves: " + ToString(first.save_id) + " and " +
                    ToString(other.save_id));
  }
  if (other.world_size != first.world_size || other.block_bytes != first.block_bytes ||
      other.coordinated != first.coordinated) {
    return DataLoss("rank " + std::to_string(other.rank) + " and rank " +
                    std::to_string(first.rank) + " disagree about the save they belong to");
  }
  return Status::Ok();
}

/// A value that ranks hold in place of the lowest rank's.
struct OtherChunk {
  Chunk chunk;
  std::vector<std::uint32_t> ranks;  ///< Ascending.
};
struct OtherObject {
  Extent extent;
  Hash128 content;
  std::vector<std::uint32_t> ranks;
};

}  // namespace

/// The merge of the headers so far.
struct HeaderMerge::Merged {
  FileIdentity identity;  ///< Of the first file.
  Metadata metadata;      ///< But for tensors, objects and variants.
  struct Tensor {
    TensorMetadata metadata;  ///< With the chunks of rank-local files, where boxes are looked for.
    ChunkCollector chunks;    ///< Of coordinated saves.
  };
  std::deque<Tensor> tensors;                             ///< Their addresses stay.
  std::unordered_map<std::string_view, Tensor*> by_name;  ///< Looked up only.
  /// The tensors of the chunks of the file before, in their order: the next file's are mostly the
  /// same.
  std::vector<Tensor*> as_before;
  /// Of files that were added as alike: a tensor for each of their boxes, and how many files they
  /// are. Their chunks have still to be added to those of `as_before`.
  std::vector<const Tensor*> grows;
  std::size_t alike = 0;
  std::map<std::string, ObjectMetadata> objects;
  std::map<std::string, Hash128> contents;  ///< Of `objects`, from rank-local files.
  /// Of rank-local files, each in the order of the ranks that hold them.
  std::map<std::string, std::vector<OtherChunk>> other_chunks;
  std::map<std::string, std::vector<OtherObject>> other_objects;

  /// Returns the tensor of a chunk under one of its names, a new one where there was none.
  Tensor* TensorOf(const std::string& fqn, const StoredChunk& stored);
  Status AddChunk(const CheckedHeader& file, const StoredChunk& stored, Tensor* into);
  Status AddChunks(const CheckedHeader& file);
  Status AddObjects(const CheckedHeader& file);
  Status AddFile(const CheckedHeader& file);
  bool MayGrow(std::size_t boxes, std::span<const std::uint32_t> box_of_chunk);
  void AddAlikeChunks();
  Status TakeTensors(std::vector<TensorMetadata>* sorted);
  void TakeVariants();
  [[nodiscard]] std::uint32_t last_file() const {
    return static_cast<std::uint32_t>(metadata.files.size() - 1);
  }
};

namespace {

/// Adds `rank` to the value that has `content`, or another value with it.
template <class Other, class IsSame>
void AddOther(std::uint32_t rank, Other other, IsSame is_same, std::vector<Other>* others) {
  const auto known = std::find_if(others->begin(), others->end(), is_same);
  if (known != others->end()) {
    known->ranks.push_back(rank);
    return;
  }
  other.ranks.push_back(rank);
  others->push_back(std::move(other));
}

/// Checks what a header of a rank that saved apart cannot have: a box of a tensor twice, and names
/// of what several ranks hold. Either would count as another rank's value.
Status CheckApart(const DataFileHeader& header) {
  std::set<std::tuple<std::string_view, const Dims&, const Dims&>> boxes;
  for (const StoredChunk& stored : header.chunks) {
    if (!IsEmpty(stored.box) &&
        !boxes.emplace(stored.fqn(), stored.box.offsets, stored.box.sizes).second) {
      return DataLoss("tensor \"" + stored.fqn() + "\": rank " +
                      std::to_string(header.identity.rank) + " has " + ToString(stored.box) +
                      " twice");
    }
  }
  const auto check = [&](std::string_view fqn) -> Status {
    return IsVariantName(fqn) ? DataLoss("rank " + std::to_string(header.identity.rank) +
                                         ", which saved apart, has \"" + std::string(fqn) +
                                         "\", a name of what several ranks hold")
                              : Status::Ok();
  };
  for (const StoredChunk& stored : header.chunks) {
    VARVE_RETURN_IF_ERROR(check(stored.fqn()));
  }
  for (const TensorAlias& alias : header.aliases) {
    VARVE_RETURN_IF_ERROR(check(alias.fqn));
  }
  for (const StoredObject& stored : header.objects) {
    VARVE_RETURN_IF_ERROR(check(stored.fqn));
  }
  return Status::Ok();
}

}  // namespace

HeaderMerge::Merged::Tensor* HeaderMerge::Merged::TensorOf(const std::string& fqn,
                                                           const StoredChunk& stored) {
  const auto found = by_name.find(fqn);
  if (found != by_name.end()) {
    return found->second;
  }
  tensors.push_back(
      {{fqn, stored.dtype(), stored.shape(), {}}, ChunkCollector(stored.shape(), stored.dtype())});
  by_name.emplace(tensors.back().metadata.fqn, &tensors.back());
  return &tensors.back();
}

/// Adds a file's chunk to its tensor, which has the lower ranks' already. Rank-local saves store a
/// replicated tensor on every rank that holds it; the copy of the lowest rank is the one the
/// metadata names, and copies with other content are variants.
Status HeaderMerge::Merged::AddChunk(const CheckedHeader& file, const StoredChunk& stored,
                                     Tensor* into) {
  TensorMetadata& tensor = into->metadata;
  if (tensor.dtype != stored.dtype() || tensor.shape != stored.shape()) {
    return DataLoss(
        "tensor \"" + tensor.fqn + "\": rank " + std::to_string(file.header.identity.rank) +
        " has " + std::string(DTypeName(stored.dtype())) + ToString(stored.shape()) +
        ", another rank " + std::string(DTypeName(tensor.dtype)) + ToString(tensor.shape));
  }
  Chunk chunk{
      stored.box,
      {last_file(), file.header_bytes + stored.bytes.begin, file.header_bytes + stored.bytes.end},
      stored.content};
  const bool counts = !IsEmpty(stored.box) || Volume(stored.shape()) == 0;
  if (file.header.identity.coordinated) {
    if (counts) {
      into->chunks.Add(std::move(chunk));
    }
    return Status::Ok();
  }
  std::vector<Chunk>& known = tensor.chunks.Listed();
  const auto replica = std::find_if(known.begin(), known.end(),
                                    [&](const Chunk& one) { return one.box == stored.box; });
  if (replica == known.end()) {
    if (counts) {
      known.push_back(std::move(chunk));
    }
  } else if (replica->content != stored.content && !IsEmpty(stored.box)) {
    AddOther(
        file.header.identity.rank, OtherChunk{std::move(chunk), {}},
        [&](const OtherChunk& other) {
          return other.chunk.content == stored.content && other.chunk.box == stored.box;
        },
        &other_chunks[tensor.fqn]);
  }
  return Status::Ok();
}

/// Adds one file's chunks, those of aliased tensors under each name.
Status HeaderMerge::Merged::AddChunks(const CheckedHeader& file) {
  std::multimap<std::string_view, const std::string*> aliases;
  for (const TensorAlias& alias : file.header.aliases) {
    aliases.emplace(alias.of, &alias.fqn);
  }
  const std::vector<StoredChunk>& chunks = file.header.chunks;
  if (by_name.empty()) {
    by_name.reserve(chunks.size());
  }
  as_before.resize(chunks.size(), nullptr);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    Tensor*& tensor = as_before[i];
    if (tensor == nullptr || tensor->metadata.fqn != chunks[i].fqn()) {
      tensor = TensorOf(chunks[i].fqn(), chunks[i]);
    }
    VARVE_RETURN_IF_ERROR(AddChunk(file, chunks[i], tensor));
    if (aliases.empty()) {
      continue;
    }
    const auto [begin, end] = aliases.equal_range(chunks[i].fqn());
    for (auto at = begin; at != end; ++at) {
      VARVE_RETURN_IF_ERROR(AddChunk(file, chunks[i], TensorOf(*at->second, chunks[i])));
    }
  }
  if (!aliases.empty()) {
    as_before.clear();  // It lacks the tensors of the other names.
  }
  return Status::Ok();
}

/// Returns true where all tensors of the file before may grow, those of one number together, and
/// sets `grows`.
bool HeaderMerge::Merged::MayGrow(std::size_t boxes, std::span<const std::uint32_t> box_of_chunk) {
  grows.assign(boxes, nullptr);
  if (box_of_chunk.size() != as_before.size()) {
    return false;
  }
  for (std::size_t i = 0; i < as_before.size(); ++i) {
    const Tensor*& first = grows[box_of_chunk[i]];
    first = first == nullptr ? as_before[i] : first;
    if (!as_before[i]->chunks.GrowsLike(first->chunks, last_file())) {
      return false;
    }
  }
  return true;
}

void HeaderMerge::Merged::AddAlikeChunks() {
  if (alike == 0) {
    return;
  }
  for (Tensor* const tensor : as_before) {
    tensor->chunks.Grow(alike);
  }
  alike = 0;
}

/// Moves the tensors to a list by name, when all files have been added.
Status HeaderMerge::Merged::TakeTensors(std::vector<TensorMetadata>* sorted) {
  std::vector<TensorMetadata*> order;
  order.reserve(tensors.size());
  for (Tensor& tensor : tensors) {
    for (Chunk& chunk : tensor.metadata.chunks.Listed()) {
      tensor.chunks.Add(std::move(chunk));
    }
    tensor.metadata.chunks = tensor.chunks.Take();
    order.push_back(&tensor.metadata);
  }
  std::sort(order.begin(), order.end(),
            [](const TensorMetadata* a, const TensorMetadata* b) { return a->fqn < b->fqn; });
  sorted->reserve(order.size());
  for (TensorMetadata* const tensor : order) {
    VARVE_RETURN_IF_ERROR(CheckTiling(*tensor));
    if (objects.contains(tensor->fqn)) {
      return DataLoss("\"" + tensor->fqn + "\" is stored both as a tensor and as an object");
    }
    sorted->push_back(std::move(*tensor));
  }
  return Status::Ok();
}

Status HeaderMerge::Merged::AddObjects(const CheckedHeader& file) {
  for (const StoredObject& stored : file.header.objects) {
    const Extent extent{last_file(), file.header_bytes + stored.bytes.begin,
                        file.header_bytes + stored.bytes.end};
    const bool is_new = objects.try_emplace(stored.fqn, ObjectMetadata{stored.fqn, extent}).second;
    if (!is_new && file.header.identity.coordinated) {
      return DataLoss("object \"" + stored.fqn + "\" is stored by two ranks");
    }
    if (file.header.identity.coordinated) {
      continue;
    }
    const Hash128 first = contents.try_emplace(stored.fqn, stored.content).first->second;
    if (is_new || first == stored.content || first == Hash128() || stored.content == Hash128()) {
      continue;  // Files of before do not say what their values are.
    }
    AddOther(
        file.header.identity.rank, OtherObject{extent, stored.content, {}},
        [&](const OtherObject& other) { return other.content == stored.content; },
        &other_objects[stored.fqn]);
  }
  return Status::Ok();
}

/// Adds what ranks that saved apart hold in place of the lowest rank's values.
void HeaderMerge::Merged::TakeVariants() {
  for (auto& [fqn, others] : other_chunks) {
    for (OtherChunk& other : others) {
      const Box box = other.chunk.box;
      metadata.tensor_variants.push_back(
          {fqn, box, RangesOf(other.ranks), {std::move(other.chunk)}});
    }
  }
  for (auto& [fqn, others] : other_objects) {
    for (const OtherObject& other : others) {
      metadata.object_variants.push_back({fqn, RangesOf(other.ranks), other.extent});
    }
  }
}

Status CheckTiling(const TensorMetadata& tensor) {
  const ChunkGrid* const grid = tensor.chunks.grid();
  if (grid != nullptr
          ? grid->size() == grid->cells.count()
          : tensor.chunks.size() == 1 && tensor.chunks.front().box == WholeBox(tensor.shape)) {
    return Status::Ok();
  }
  std::vector<Box> boxes;
  boxes.reserve(tensor.chunks.size());
  std::uint64_t covered = 0;
  for (const Chunk& chunk : tensor.chunks) {
    boxes.push_back(chunk.box);
    covered += Volume(chunk.box.sizes);
  }
  const auto overlap = FindOverlap(boxes);
  if (!overlap.ok() || *overlap) {
    return DataLoss("tensor \"" + tensor.fqn + "\": " +
                    (overlap.ok() ? "stored chunks overlap: " + ToString(boxes[(*overlap)->first]) +
                                        " and " + ToString(boxes[(*overlap)->second])
                                  : overlap.status().message()));
  }
  if (covered != Volume(tensor.shape)) {
    const auto holes = SubtractAll(WholeBox(tensor.shape), boxes);
    return DataLoss("tensor \"" + tensor.fqn + "\" of shape " + ToString(tensor.shape) +
                    ": no rank stored " + ToString(holes.front()));
  }
  return Status::Ok();
}

HeaderMerge::HeaderMerge() : merged_(std::make_unique<Merged>()) {}
HeaderMerge::~HeaderMerge() = default;

/// Adds a file, without what it holds.
Status HeaderMerge::Merged::AddFile(const CheckedHeader& file) {
  const FileIdentity& own = file.header.identity;
  if (metadata.files.empty()) {
    identity = own;
    metadata.save_id = own.save_id;
    metadata.world_size = own.world_size;
    metadata.block_bytes = own.block_bytes;
  }
  VARVE_RETURN_IF_ERROR(CheckAgreement(identity, own));
  if (!metadata.files.empty() && metadata.files.back().rank >= own.rank) {
    return metadata.files.back().rank == own.rank
               ? DataLoss("two data files of rank " + std::to_string(own.rank))
               : Internal("headers are not in the order of their ranks");
  }
  metadata.files.push_back({DataFileName(file.header), own.rank,
                            file.header_bytes + file.header.data_bytes, file.header_bytes,
                            file.header_crc32c, file.header.block_crc32c});
  return Status::Ok();
}

Status HeaderMerge::Add(const CheckedHeader& file) {
  merged_->AddAlikeChunks();
  VARVE_RETURN_IF_ERROR(merged_->AddFile(file));
  if (!file.header.identity.coordinated) {
    VARVE_RETURN_IF_ERROR(CheckApart(file.header));
  }
  VARVE_RETURN_IF_ERROR(merged_->AddObjects(file));
  if (file.header.structure) {
    merged_->metadata.structures.push_back({merged_->last_file(),
                                            file.header_bytes + file.header.structure->begin,
                                            file.header_bytes + file.header.structure->end});
  }
  return merged_->AddChunks(file);
}

Result<bool> HeaderMerge::AddAlike(const CheckedHeader& file, std::span<const Box> boxes,
                                   std::span<const std::uint32_t> box_of_chunk) {
  const std::vector<DataFile>& files = merged_->metadata.files;
  if (files.empty() || files.back().data_begin != file.header_bytes ||
      (merged_->alike == 0 && !merged_->MayGrow(boxes.size(), box_of_chunk))) {
    return false;
  }
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const Merged::Tensor* const first = merged_->grows[i];
    if (first != nullptr && !first->chunks.IsNext(boxes[i], merged_->alike)) {
      return false;
    }
  }
  VARVE_RETURN_IF_ERROR(merged_->AddFile(file));
  VARVE_RETURN_IF_ERROR(merged_->AddObjects(file));
  ++merged_->alike;
  return true;
}

Result<Metadata> HeaderMerge::Finish() {
  merged_->AddAlikeChunks();
  Metadata& metadata = merged_->metadata;
  if (metadata.files.empty()) {
    return DataLoss("no data files");
  }
  VARVE_RETURN_IF_ERROR(merged_->TakeTensors(&metadata.tensors));
  for (auto& [fqn, object] : merged_->objects) {
    metadata.objects.push_back(std::move(object));
  }
  merged_->TakeVariants();
  VARVE_RETURN_IF_ERROR(SeparateVariants(&metadata));
  return std::move(metadata);
}

Result<Metadata> MergeHeaders(std::vector<CheckedHeader> headers) {
  std::sort(headers.begin(), headers.end(), [](const CheckedHeader& a, const CheckedHeader& b) {
    return a.header.identity.rank < b.header.identity.rank;
  });
  HeaderMerge merge;
  for (const CheckedHeader& file : headers) {
    VARVE_RETURN_IF_ERROR(merge.Add(file));
  }
  return merge.Finish();
}

}  // namespace varve
