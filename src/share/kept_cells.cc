#include "share/kept_cells.h"

#include <algorithm>
#include <iterator>

#include "base/checked.h"

namespace varve {
namespace {

/// Blocks for cells that are still being sent when newer ones have taken their places.
constexpr std::size_t kInUse = 8;

}  // namespace

Cell::Cell(BufferPool::Lease memory, ByteRange range, std::uint64_t part_bytes)
    : memory_(std::move(memory)),
      range_(range),
      part_bytes_(part_bytes),
      there_(DivideUp(range.end - range.begin, part_bytes)) {}

Status Cell::Fill(ByteRange wanted, const Read& read) {
  const std::scoped_lock lock(mutex_);
  const std::size_t end = DivideUp(wanted.end - range_.begin, part_bytes_);
  for (std::size_t i = (wanted.begin - range_.begin) / part_bytes_; i < end; ++i) {
    std::size_t next = i;
    while (next < end && !there_[next]) {
      ++next;
    }
    if (next == i) {
      continue;
    }
    const ByteRange range{range_.begin + i * part_bytes_,
                          std::min(range_.begin + next * part_bytes_, range_.end)};
    VARVE_RETURN_IF_ERROR(
        read(range, {memory_.data() + (range.begin - range_.begin), range.end - range.begin}));
    std::fill(there_.begin() + static_cast<std::ptrdiff_t>(i),
              there_.begin() + static_cast<std::ptrdiff_t>(next), true);
    i = next - 1;
  }
  return Status::Ok();
}

KeptCells::KeptCells(std::size_t most) : most_(most), pool_((most + kInUse) * kPoolBlockBytes) {}

Result<std::shared_ptr<Cell>> KeptCells::Of(std::uint32_t file, ByteRange range,
                                            std::uint64_t part_bytes) {
  const Id id(file, range.begin);
  const auto kept = [&]() -> std::shared_ptr<Cell> {  // With the lock held.
    const auto place = places_.find(id);
    if (place == places_.end()) {
      return nullptr;
    }
    kept_.splice(kept_.begin(), kept_, place->second);
    return kept_.front().second;
  };
  std::vector<std::shared_ptr<Cell>> dropped;  // Give their memory back without the lock.
  {
    const std::scoped_lock lock(mutex_);
    if (auto cell = kept()) {
      return cell;
    }
    if (kept_.size() >= most_ && most_ > 0) {
      dropped.push_back(DropOne());
    }
  }
  dropped.clear();
  VARVE_ASSIGN_OR_RETURN(BufferPool::Lease memory, pool_.Acquire());
  const std::scoped_lock lock(mutex_);
  if (auto cell = kept()) {
    return cell;  // Another thread was first.
  }
  auto made = std::make_shared<Cell>(std::move(memory), range, part_bytes);
  kept_.emplace_front(id, made);
  places_[id] = kept_.begin();
  // Each thread that waited for memory has added a cell. Others may still wait for memory.
  while (kept_.size() > std::max<std::size_t>(most_, 1)) {
    dropped.push_back(DropOne());
  }
  return made;
}

/// Keeps one cell less: of those that no caller holds the one that was used first. The lock is
/// held.
std::shared_ptr<Cell> KeptCells::DropOne() {
  auto place = std::find_if(kept_.rbegin(), kept_.rend(),
                            [](const auto& kept) { return kept.second.use_count() == 1; });
  place = place == kept_.rend() ? kept_.rbegin() : place;
  std::shared_ptr<Cell> dropped = std::move(place->second);
  places_.erase(place->first);
  kept_.erase(std::next(place).base());
  return dropped;
}

}  // namespace varve
