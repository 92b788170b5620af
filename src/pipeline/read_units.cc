#include "pipeline/read_units.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/checked.h"

namespace varve {
namespace {

constexpr std::size_t kWindowUnits = 64;  // Times the ranks.

/// Appends the parts of a range that lie in one cell each.
void CutIntoCells(std::size_t f, const BlockGeometry& geometry, ByteRange range,
                  std::vector<ReadUnit>* units) {
  while (range.begin < range.end) {
    const std::uint64_t end = CellRange(geometry, CellOf(geometry, range.begin)).end;
    units->push_back({f, {range.begin, std::min(end, range.end)}, true});
    range.begin = end;
  }
}

/// Sorts units by the window in which this rank reads them. The units of a window that are read at
/// once, and those of earlier windows whose time has come, alternate.
void SortByOrder(std::span<const FileReads> files, const ReadOrder& order,
                 std::vector<ReadUnit>* units) {
  struct Turn {
    std::size_t window = 0;
    double place = 0;  // In the window, from 0 to 1.
    ReadUnit unit;
  };
  const auto cell_of = [&](const ReadUnit& unit) {
    return CellOf(files[unit.file].geometry, unit.range.begin);
  };
  // Round all files: the ranks that own them all have some of each window.
  std::stable_sort(units->begin(), units->end(),
                   [&](const ReadUnit& a, const ReadUnit& b) { return cell_of(a) < cell_of(b); });
  std::map<std::pair<std::size_t, unsigned>, std::vector<ReadUnit>> groups;
  for (std::size_t i = 0; i < units->size(); ++i) {
    const ReadUnit& unit = (*units)[i];
    const unsigned delay = order.delay(files[unit.file].number, cell_of(unit));
    groups[{i / order.window + delay, delay}].push_back(unit);
  }
  std::vector<Turn> turns;
  turns.reserve(units->size());
  for (const auto& [key, group] : groups) {
    const auto count = static_cast<double>(group.size());
    const auto begin = static_cast<std::size_t>(order.first * count);
    for (std::size_t i = 0; i < group.size(); ++i) {
      turns.push_back(
          {key.first, (static_cast<double>(i) + 0.5) / count, group[(begin + i) % group.size()]});
    }
  }
  std::stable_sort(turns.begin(), turns.end(), [](const Turn& a, const Turn& b) {
    return std::pair(a.window, a.place) < std::pair(b.window, b.place);
  });
  for (std::size_t i = 0; i < turns.size(); ++i) {
    (*units)[i] = turns[i].unit;
  }
}

}  // namespace

std::vector<ReadUnit> UnitsOf(std::span<const FileReads> files, std::uint64_t max_gap_bytes,
                              SharedBy shared_by, const ReadOrder& order) {
  std::vector<ReadUnit> units;
  for (std::size_t f = 0; f < files.size(); ++f) {
    const FileReads& reads = files[f];
    std::vector<ByteRange> needed;
    for (const ReadTarget& target : reads.targets) {
      for (const ByteRange& range : target.region.TouchedRanges(max_gap_bytes)) {
        needed.push_back({target.chunk_begin + range.begin, target.chunk_begin + range.end});
      }
    }
    const std::uint64_t block = reads.geometry.block_bytes;
    const std::uint64_t most = order.delay ? RoundUp(reads.geometry.file_size, block) : 0;
    for (const ByteRange& range : ScheduleReads(std::move(needed), reads.geometry, max_gap_bytes,
                                                std::max(most, ReadUnitBytes(block)))) {
      if (order.delay) {
        CutIntoCells(f, reads.geometry, range, &units);
      } else {
        units.push_back({f, range, true});
      }
    }
  }
  if (order.delay) {
    SortByOrder(files, order, &units);
    return units;
  }
  const std::size_t window = kWindowUnits * shared_by.ranks;
  for (std::size_t at = 0; at < units.size(); at += window) {
    const std::span<ReadUnit> of_window =
        std::span(units).subspan(at, std::min(window, units.size() - at));
    const std::size_t own = of_window.size() * shared_by.place / shared_by.ranks;
    const std::size_t next = of_window.size() * (shared_by.place + 1) / shared_by.ranks;
    std::rotate(of_window.begin(), of_window.begin() + static_cast<std::ptrdiff_t>(own),
                of_window.end());
    for (ReadUnit& unit : of_window.subspan(next - own)) {
      unit.own = false;
    }
  }
  return units;
}

}  // namespace varve
