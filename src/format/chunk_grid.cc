#include "format/chunk_grid.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/checked.h"
#include "tensor/box.h"

namespace varve {
namespace {

bool IsPlainAndPacked(const Chunk& chunk, std::uint64_t item_bytes) {
  return chunk.extent.encoding == Encoding::kPlain && chunk.strides.empty() && !chunk.conj &&
         !chunk.neg && chunk.payload == 0 &&
         chunk.extent.end - chunk.extent.begin == Volume(chunk.box.sizes) * item_bytes;
}

/// Returns the cells of which the first has the size of the chunk.
std::optional<Cells> CellsFrom(const Dims& shape, const Chunk& first) {
  return first.box.sizes.size() == shape.size() ? Cells::Of(shape, first.box.sizes) : std::nullopt;
}

bool IsNextOf(const ChunkGrid& grid, const Chunk& chunk) {
  return IsPlainAndPacked(chunk, grid.item_bytes) && grid.size() < grid.cells.count() &&
         chunk.box == grid.cells.BoxOf(grid.size());
}

void Append(const Chunk& chunk, ChunkGrid* grid) {
  AddPlace(chunk.extent.file, chunk.extent.begin, 0, &grid->runs);
  if (chunk.content != Hash128() || !grid->contents.empty()) {
    grid->contents.resize(grid->size());
    grid->contents.back() = chunk.content;
  }
}

/// Returns a grid of the chunks; null when one is not the next cell.
std::shared_ptr<ChunkGrid> GridOf(const Dims& shape, std::uint64_t item_bytes,
                                  const std::vector<Chunk>& chunks) {
  auto cells = CellsFrom(shape, chunks.front());
  if (!cells) {
    return nullptr;
  }
  auto grid = std::make_shared<ChunkGrid>(*std::move(cells), item_bytes);
  for (const Chunk& chunk : chunks) {
    if (!IsNextOf(*grid, chunk)) {
      return nullptr;
    }
    Append(chunk, grid.get());
  }
  return grid;
}

}  // namespace

void AddPlace(std::uint32_t file, std::uint64_t begin, std::size_t first,
              std::vector<ChunkRun>* runs) {
  const bool has_last = runs->size() > first;
  const std::uint64_t number = has_last ? runs->back().end : 0;
  if (has_last && runs->back().begin == begin) {
    ChunkRun& last = runs->back();
    const std::uint64_t before = runs->size() > first + 1 ? (*runs)[runs->size() - 2].end : 0;
    const std::uint64_t count = last.end - before;
    const std::int64_t from_first = std::int64_t{file} - std::int64_t{last.file};
    if (count == 1 && from_first >= std::numeric_limits<std::int32_t>::min() &&
        from_first <= std::numeric_limits<std::int32_t>::max()) {
      last.step = static_cast<std::int32_t>(from_first);
      ++last.end;
      return;
    }
    if (count > 1 && from_first == last.step * static_cast<std::int64_t>(count)) {
      ++last.end;
      return;
    }
  }
  runs->push_back({number + 1, begin, file, 0});
}

std::optional<Cells> Cells::Of(const Dims& shape, const Dims& cell) {
  Cells cells(shape, cell);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (cell[d] == 0 || cell[d] > shape[d]) {
      return std::nullopt;
    }
    cells.along_[d] = DivideUp(shape[d], cell[d]);
    if (cells.along_[d] > std::numeric_limits<std::uint32_t>::max() / cells.count_) {
      return std::nullopt;
    }
    cells.count_ *= cells.along_[d];
  }
  return cells;
}

Box Cells::BoxOf(std::uint64_t number) const {
  Box box{Dims(shape_.size()), Dims(shape_.size())};
  for (std::size_t d = shape_.size(); d-- > 0;) {
    const bool is_only = along_[d] == 1;  // A division less.
    box.offsets[d] = is_only ? 0 : number % along_[d] * cell_[d];
    box.sizes[d] = std::min(cell_[d], shape_[d] - box.offsets[d]);
    number = is_only ? number : number / along_[d];
  }
  return box;
}

void Cells::AddOverlapping(const Box& box, std::uint64_t end,
                           std::vector<std::uint32_t>* numbers) const {
  if (IsEmpty(box)) {
    return;
  }
  const std::size_t dimensions = shape_.size();
  Dims at(dimensions);  // The first cell of each dimension, then one after the other.
  Dims last(dimensions);
  for (std::size_t d = 0; d < dimensions; ++d) {
    at[d] = box.offsets[d] / cell_[d];
    last[d] = (box.offsets[d] + box.sizes[d] - 1) / cell_[d];
  }
  const Dims first = at;
  for (;;) {
    std::uint64_t number = 0;
    for (std::size_t d = 0; d < dimensions; ++d) {
      number = number * along_[d] + at[d];
    }
    if (number < end) {
      numbers->push_back(static_cast<std::uint32_t>(number));
    }
    std::size_t d = dimensions;
    while (d > 0 && at[d - 1] == last[d - 1]) {
      at[d - 1] = first[d - 1];
      --d;
    }
    if (d == 0) {
      return;
    }
    ++at[d - 1];
  }
}

Chunk ChunkGrid::At(std::size_t number) const {
  const auto run =
      std::upper_bound(runs.begin(), runs.end(), number,
                       [](std::size_t at, const ChunkRun& one) { return at < one.end; });
  const std::uint64_t first = run == runs.begin() ? 0 : std::prev(run)->end;
  Chunk chunk;
  chunk.box = cells.BoxOf(number);
  chunk.extent.file =
      static_cast<std::uint32_t>(run->file + run->step * static_cast<std::int64_t>(number - first));
  chunk.extent.begin = run->begin;
  chunk.extent.end = run->begin + Volume(chunk.box.sizes) * item_bytes;
  if (!contents.empty()) {
    chunk.content = contents[number];
  }
  return chunk;
}

std::optional<Cells> CellsOf(const Dims& shape, std::uint64_t item_bytes, const ChunkList& chunks) {
  if (const ChunkGrid* const grid = chunks.grid()) {
    return grid->size() == grid->cells.count() ? std::optional(grid->cells) : std::nullopt;
  }
  auto cells = chunks.empty() ? std::nullopt : CellsFrom(shape, chunks.front());
  if (!cells || cells->count() != chunks.size()) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const Chunk chunk = chunks[i];
    if (!IsPlainAndPacked(chunk, item_bytes) || chunk.box != cells->BoxOf(i)) {
      return std::nullopt;
    }
  }
  return cells;
}

ChunkCollector::ChunkCollector(const Dims& shape, DType dtype)
    : shape_(shape), item_bytes_(ItemSize(dtype)) {}

void ChunkCollector::Add(Chunk chunk) {
  if (grid_ != nullptr) {
    if (IsNextOf(*grid_, chunk)) {
      Append(chunk, grid_.get());
      return;
    }
    listed_ = std::move(ChunkList(std::exchange(grid_, nullptr)).Listed());
  }
  listed_.push_back(std::move(chunk));
  if (listed_.size() == kFewChunks) {
    grid_ = GridOf(shape_, item_bytes_, listed_);
    if (grid_ != nullptr) {
      listed_.clear();
      listed_.shrink_to_fit();
    }
  }
}

bool ChunkCollector::GrowsLike(const ChunkCollector& other, std::uint32_t last) const {
  if (grid_ == nullptr || other.grid_ == nullptr || !grid_->contents.empty() ||
      grid_->size() != other.grid_->size() || grid_->cells.cell() != other.grid_->cells.cell()) {
    return false;
  }
  const std::vector<ChunkRun>& runs = grid_->runs;
  const ChunkRun& run = runs.back();
  const std::uint64_t count = run.end - (runs.size() > 1 ? runs[runs.size() - 2].end : 0);
  return count > 1 && run.step == 1 && run.file + count - 1 == last;
}

bool ChunkCollector::IsNext(const Box& box, std::size_t more) const {
  const std::size_t number = grid_->size() + more;
  return number < grid_->cells.count() && box == grid_->cells.BoxOf(number);
}

ChunkList ChunkCollector::Take() {
  if (grid_ != nullptr) {
    return ChunkList(std::shared_ptr<const ChunkGrid>(std::move(grid_)));
  }
  SortByOffsets(&listed_);
  if (listed_.size() >= kFewChunks) {
    if (auto grid = GridOf(shape_, item_bytes_, listed_)) {
      return ChunkList(std::shared_ptr<const ChunkGrid>(std::move(grid)));
    }
  }
  return std::move(listed_);
}

void SortByOffsets(std::vector<Chunk>* chunks) {
  const auto before = [](const Chunk& a, const Chunk& b) { return a.box.offsets < b.box.offsets; };
  if (!std::is_sorted(chunks->begin(), chunks->end(), before)) {  // By rank they mostly are.
    std::sort(chunks->begin(), chunks->end(), before);
  }
}

// ---- lists ----

std::size_t ChunkList::size() const { return grid_ ? grid_->size() : listed_.size(); }

// NOLINTNEXTLINE(readability-const-return-type): see the header.
const Chunk ChunkList::operator[](std::size_t number) const {
  return grid_ ? grid_->At(number) : listed_[number];
}

std::vector<Chunk>& ChunkList::Listed() {
  if (grid_) {
    listed_.assign(begin(), end());
    grid_.reset();
  }
  return listed_;
}

void ChunkList::ForgetHashes() {
  if (grid_ && !grid_->contents.empty()) {
    auto grid =
        std::make_shared<ChunkGrid>(ChunkGrid{grid_->cells, grid_->item_bytes, grid_->runs, {}});
    grid_ = std::move(grid);
  }
  for (Chunk& chunk : listed_) {
    chunk.content = {};
  }
}

bool operator==(const ChunkList& a, const ChunkList& b) {
  if (a.grid_ && a.grid_ == b.grid_) {
    return true;
  }
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
}

void ChunkList::AddOverlapping(const Box& box, std::vector<std::uint32_t>* numbers) const {
  if (grid_) {
    grid_->cells.AddOverlapping(box, grid_->size(), numbers);
    return;
  }
  for (std::size_t i = 0; i < listed_.size(); ++i) {
    const Box& stored = listed_[i].box;
    if (!stored.offsets.empty() && stored.offsets[0] >= box.offsets[0] + box.sizes[0]) {
      return;  // Chunks are sorted by offsets: none further on can overlap.
    }
    if (Intersect(stored, box)) {
      numbers->push_back(static_cast<std::uint32_t>(i));
    }
  }
}

}  // namespace varve
