/// Grids of chunks: what a list keeps of a tensor that ranks have cut into equal boxes. Pure.
///
/// 1,024 ranks that hold shards of 1,000 tensors store a million chunks, which differ in little.
/// The boxes of a tensor are the cells of a grid. Each rank's shard is in its own file, and begins
/// at the same byte of it as in the file before. A grid keeps the size of a cell and one run of
/// places; the chunks are arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "varve/metadata.h"

namespace varve {

/// The places of chunks in a row: in files `file`, `file + step`, `file + 2 * step` and so on, each
/// at byte `begin` of its file.
struct ChunkRun {
  std::uint64_t end = 0;  ///< The number of the first chunk behind the run.
  std::uint64_t begin = 0;
  std::uint32_t file = 0;
  std::int32_t step = 0;  ///< 0 in a run of one chunk, and of several without bytes.
  friend bool operator==(const ChunkRun&, const ChunkRun&) = default;
};

/// Appends the place of one more chunk to the runs that begin with number `first`: the runs of
/// one tensor. Each run is as long as can be, so equal places give equal runs.
void AddPlace(std::uint32_t file, std::uint64_t begin, std::size_t first,
              std::vector<ChunkRun>* runs);

/// The boxes of equal size that a tensor is cut into; in each dimension the last may be smaller.
/// They are numbered by their offsets.
class Cells {
 public:
  /// Returns the cells of which one that is cut off nowhere has this size. Nothing when a number of
  /// it is 0 or more than the shape's, or when there are more than 2^32-1 cells.
  static std::optional<Cells> Of(const Dims& shape, const Dims& cell);

  [[nodiscard]] const Dims& cell() const { return cell_; }
  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] Box BoxOf(std::uint64_t number) const;
  /// Appends the numbers of the cells below `end` that share an element with `box`, ascending.
  void AddOverlapping(const Box& box, std::uint64_t end, std::vector<std::uint32_t>* numbers) const;

 private:
  Cells(const Dims& shape, const Dims& cell) : shape_(shape), cell_(cell), along_(shape.size()) {}

  Dims shape_;
  Dims cell_;
  Dims along_;  ///< How many in each dimension.
  std::uint64_t count_ = 1;
};

/// A list of fewer chunks keeps them: that takes less than a grid does.
inline constexpr std::size_t kFewChunks = 4;

/// Chunks whose boxes are the first cells, all of them in a whole list. Each is plain and packed.
struct ChunkGrid {
  Cells cells;
  std::uint64_t item_bytes = 1;
  std::vector<ChunkRun> runs;
  std::vector<Hash128> contents;  ///< By chunk; empty where none is known.

  [[nodiscard]] std::size_t size() const { return runs.empty() ? 0 : runs.back().end; }
  [[nodiscard]] Chunk At(std::size_t number) const;
};

/// Returns the cells whose boxes are those of the chunks, in their order and all of them; nothing
/// when there are none, or when a chunk is not plain and packed.
std::optional<Cells> CellsOf(const Dims& shape, std::uint64_t item_bytes, const ChunkList& chunks);

void SortByOffsets(std::vector<Chunk>* chunks);

/// Collects the chunks of a tensor. While each is the next cell of a grid they take little memory.
class ChunkCollector {
 public:
  ChunkCollector(const Dims& shape, DType dtype);

  void Add(Chunk chunk);

  /// Returns true where the last chunks, two at least, are at one byte each of the files up to
  /// `last`, and `other` has as many chunks of the same size. Such tensors may grow together.
  [[nodiscard]] bool GrowsLike(const ChunkCollector& other, std::uint32_t last) const;
  /// Of one that grows: returns true where `box` is the cell behind `more` further ones.
  [[nodiscard]] bool IsNext(const Box& box, std::size_t more) const;
  /// Of one that grows: adds the next `more` cells, each in the next file, at the byte of the last.
  void Grow(std::size_t more) { grid_->runs.back().end += more; }

  /// Returns what was added, sorted by offsets. Call nothing afterwards.
  ChunkList Take();

 private:
  Dims shape_;
  std::uint64_t item_bytes_;
  std::vector<Chunk> listed_;
  std::shared_ptr<ChunkGrid> grid_;  ///< Else `listed_` has the chunks.
};

}  // namespace varve
