#include "interop/hfai/pieces.h"

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "tensor/box.h"

namespace varve {
namespace {

// The factor by which the pickles of all parts may grow as chunks, and bytes that are always free:
// a piece of a few bytes of pickle may become 2 * dimensions - 1 chunks.
constexpr std::uint64_t kGrowth = 8;
constexpr std::uint64_t kFreeBytes = std::uint64_t{16} << 20;

std::uint64_t Elements(const HfaiPiece& piece) { return Volume(piece.piece.shape); }

/// Adds the chunks of a piece whose first element is element `begin` of the flattened tensor.
void AddChunks(const HfaiPiece& piece, std::uint64_t begin, std::vector<Chunk>* chunks) {
  const Chunk& stored = piece.piece.chunks[0];
  const std::int64_t stride = stored.strides.empty() ? 1 : stored.strides[0];
  const std::uint64_t step = static_cast<std::uint64_t>(stride) * ItemSize(piece.piece.dtype);
  std::uint64_t at = stored.extent.begin;
  for (Box& box : FlatRunBoxes(piece.shape, begin, begin + Elements(piece))) {
    const std::uint64_t count = Volume(box.sizes);
    Chunk chunk = stored;
    chunk.extent.begin = at;
    chunk.extent.end = at + (count - 1) * step + ItemSize(piece.piece.dtype);
    chunk.strides.clear();
    if (stride != 1) {
      chunk.strides = RowMajorStrides(box.sizes);
      for (std::int64_t& along : chunk.strides) {
        along *= stride;
      }
    }
    chunk.box = std::move(box);
    chunks->push_back(std::move(chunk));
    at += count * step;
  }
}

}  // namespace

std::uint64_t HfaiPieceElements(std::uint64_t count, std::uint64_t part, std::uint64_t world) {
  const std::uint64_t each = DivideUp(count, world);
  const auto begin = CheckedMul(part, each);
  return begin && *begin < count ? std::min(each, count - *begin) : 0;
}

HfaiJoiner::HfaiJoiner(const std::vector<HfaiPart>& parts)
    : parts_(parts), bytes_left_(kFreeBytes) {
  for (const HfaiPart& part : parts) {
    bytes_left_ += part.size * kGrowth;
  }
}

Status HfaiJoiner::Charge(std::uint64_t bytes, const std::string& name) {
  if (bytes > bytes_left_) {
    return InvalidArgument(name +
                           ": the pieces of large tensors take many times the memory of the files");
  }
  bytes_left_ -= bytes;
  return Status::Ok();
}

Result<StoredTensor> HfaiJoiner::Join(const HfaiLarge& large) {
  const HfaiPiece& first =
      **std::find_if(large.pieces.begin(), large.pieces.end(), [](const auto* p) { return p; });
  const std::uint64_t count = Volume(first.shape);
  StoredTensor whole{first.piece.dtype, first.shape, {}};
  std::uint64_t begin = 0;
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    VARVE_RETURN_IF_ERROR(Check(large, first, part));
    const std::uint64_t elements = HfaiPieceElements(count, part, parts_.size());
    if (elements == 0) {
      continue;
    }
    // Room for the largest number of chunks, each with three lists of as many numbers as there are
    // dimensions.
    const std::uint64_t dims = first.shape.size();
    const std::uint64_t bytes =
        (2 * dims + 1) * (sizeof(Chunk) + 3 * dims * sizeof(Dims::value_type));
    VARVE_RETURN_IF_ERROR(Charge(bytes, large.name));
    AddChunks(*large.pieces[part], begin, &whole.chunks);
    begin += elements;
  }
  return whole;
}

Status HfaiJoiner::Check(const HfaiLarge& large, const HfaiPiece& first, std::size_t part) const {
  const HfaiPiece* const piece = large.pieces[part];
  const std::string& file = parts_[part].name;
  const std::uint64_t count = Volume(first.shape);
  const std::uint64_t want = HfaiPieceElements(count, part, parts_.size());
  const std::string name = large.name + " " + ToString(first.shape);
  if (piece == nullptr) {
    return want == 0 ? Status::Ok()
                     : DataLoss(name + ": " + file + " has no piece; " + std::to_string(want) +
                                " of " + std::to_string(count) + " elements are missing");
  }
  if (piece->shape != first.shape) {
    return DataLoss(name + ": " + file + " says that the whole shape is " + ToString(piece->shape));
  }
  if (piece->piece.dtype != first.piece.dtype) {
    return DataLoss(name + ": the piece in " + file + " is " +
                    std::string(DTypeName(piece->piece.dtype)) + ", other pieces are " +
                    std::string(DTypeName(first.piece.dtype)));
  }
  if (Elements(*piece) != want) {
    return DataLoss(name + ": the piece in " + file + " has " + std::to_string(Elements(*piece)) +
                    " elements instead of " + std::to_string(want));
  }
  return Status::Ok();
}

}  // namespace varve
