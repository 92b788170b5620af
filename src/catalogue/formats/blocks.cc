// Tensors that are stored as flattened blocks of a grid: Decoded::in_blocks.
//
// Megatron-Core before 0.14 stores the distributed optimizer's tensors so. A tensor of [X, Y] that
// is cut into blocks of [x, y] is in the index as one of [X / x, Y / y, x * y], of which each rank
// has written ranges of the last dimension. A range of a flattened block is a few boxes of the
// whole tensor, which lie one after the other in the file.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/run_threads.h"
#include "catalogue/chunk_source.h"
#include "catalogue/formats/opening.h"
#include "format/chunk_grid.h"
#include "tensor/box.h"

namespace varve {
namespace {

constexpr int kBlockThreads = 16;  // Each waits for small reads.

/// Returns the sizes of a block of `whole`. Errors: Unimplemented where the grid does not fit.
Result<Dims> BlockOf(const TensorMetadata& stored, const Dims& whole) {
  Dims block;
  std::uint64_t elements = 1;
  bool fits = stored.shape.size() == whole.size() + 1;
  for (std::size_t d = 0; fits && d < whole.size(); ++d) {
    fits = stored.shape[d] > 0 && whole[d] % stored.shape[d] == 0;
    block.push_back(fits ? whole[d] / stored.shape[d] : 0);
    // No overflow: the last dimension was checked, and only one equal to it is taken.
    fits = fits && (block.back() == 0 || elements <= stored.shape.back() / block.back());
    elements *= fits ? block.back() : 1;
  }
  if (!fits || elements != stored.shape.back()) {
    return Unimplemented("it is stored in flattened blocks as " + ToString(stored.shape) +
                         ", which are no regular blocks of " + ToString(whole));
  }
  return block;
}

/// One tensor on its way from the index's shape to its own.
struct Placed {
  std::vector<Chunk> chunks;
  std::vector<RecordCrc> records;
};

/// Adds the boxes of one stored range of a block.
Status Place(const ListedFolder& folder, const Metadata& metadata, const TensorMetadata& tensor,
             const Chunk& chunk, const Dims& block, Placed* placed) {
  const std::size_t dims = block.size();
  const auto& sizes = chunk.box.sizes;
  if (std::any_of(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(dims),
                  [](std::uint64_t size) { return size != 1; })) {
    return Unimplemented("the chunk " + ToString(chunk.box) + " has parts of several blocks");
  }
  const std::string path = JoinPath(folder.path, metadata.files[chunk.extent.file].name);
  auto opened = folder.storage.OpenForRead(path);
  if (!opened.ok() && opened.status().code() == StatusCode::kNotFound) {
    return DataLoss(path + ", which the index names, is not there");
  }
  VARVE_ASSIGN_OR_RETURN(const auto file, std::move(opened));
  VARVE_ASSIGN_OR_RETURN(const ChunkSource source, ResolveChunk(tensor, chunk, *file));
  const bool in_order = source.strides.empty() || source.strides.back() == 1;
  if (source.unpacked != nullptr || source.conj || source.neg || !in_order) {
    return Unimplemented("the chunk " + ToString(chunk.box) + " is not stored as it is in memory");
  }
  if (source.record) {
    placed->records.push_back(
        {chunk.extent.file, source.record->begin, source.record->end, source.record->crc32});
  }
  const std::uint64_t from = chunk.box.offsets.back();
  std::uint64_t begin = source.extent.begin;
  for (Box& box : FlatRunBoxes(block, from, from + sizes.back())) {
    const std::uint64_t end = begin + Volume(box.sizes) * ItemSize(tensor.dtype);
    for (std::size_t d = 0; d < dims; ++d) {
      box.offsets[d] += chunk.box.offsets[d] * block[d];
    }
    placed->chunks.push_back({std::move(box), {chunk.extent.file, begin, end}});
    begin = end;
  }
  return Status::Ok();
}

}  // namespace

Status PlaceBlocks(const ListedFolder& folder, std::vector<std::pair<std::string, Dims>> in_blocks,
                   OpenedIndex* opened) {
  std::vector<TensorMetadata>& tensors = opened->metadata.tensors;
  std::erase_if(in_blocks, [&](const auto& one) {
    const TensorMetadata* const stored = opened->metadata.FindTensor(one.first);
    return stored == nullptr || stored->shape == one.second;
  });
  std::vector<Placed> placed(in_blocks.size());
  const auto place = [&](std::size_t i) -> Status {
    const TensorMetadata& stored = *opened->metadata.FindTensor(in_blocks[i].first);
    VARVE_ASSIGN_OR_RETURN(const Dims block, BlockOf(stored, in_blocks[i].second));
    for (const Chunk& chunk : stored.chunks) {
      if (Volume(chunk.box.sizes) > 0) {
        VARVE_RETURN_IF_ERROR(Place(folder, opened->metadata, stored, chunk, block, &placed[i]));
      }
    }
    return Status::Ok();
  };
  VARVE_RETURN_IF_ERROR(RunThreads(in_blocks.size(), kBlockThreads, {}, [&](std::size_t i) {
    return place(i).Annotate(folder.path + ": tensor \"" + in_blocks[i].first + "\"");
  }));
  for (std::size_t i = 0; i < in_blocks.size(); ++i) {
    const TensorMetadata* const stored = opened->metadata.FindTensor(in_blocks[i].first);
    TensorMetadata& tensor = tensors[static_cast<std::size_t>(stored - tensors.data())];
    tensor.shape = std::move(in_blocks[i].second);
    tensor.chunks = std::move(placed[i].chunks);
    SortByOffsets(&tensor.chunks.Listed());
    opened->records.insert(opened->records.end(), placed[i].records.begin(),
                           placed[i].records.end());
  }
  std::sort(opened->records.begin(), opened->records.end(),
            [](const RecordCrc& a, const RecordCrc& b) {
              return std::tie(a.file, a.begin) < std::tie(b.file, b.begin);
            });
  return Status::Ok();
}

}  // namespace varve
