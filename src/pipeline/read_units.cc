#include "pipeline/read_units.h"

#include <algorithm>
#include <utility>

namespace varve {
namespace {

constexpr std::size_t kWindowUnits = 64;  // Times the ranks.

}  // namespace

std::vector<ReadUnit> UnitsOf(std::span<const FileReads> files, std::uint64_t max_gap_bytes,
                              SharedBy shared_by) {
  std::vector<ReadUnit> units;
  for (std::size_t f = 0; f < files.size(); ++f) {
    const FileReads& reads = files[f];
    std::vector<ByteRange> needed;
    for (const ReadTarget& target : reads.targets) {
      for (const ByteRange& range : target.region.TouchedRanges(max_gap_bytes)) {
        needed.push_back({target.chunk_begin + range.begin, target.chunk_begin + range.end});
      }
    }
    for (const ByteRange& range : ScheduleReads(std::move(needed), reads.geometry, max_gap_bytes,
                                                ReadUnitBytes(reads.geometry.block_bytes))) {
      units.push_back({f, range});
    }
  }
  const std::size_t window = kWindowUnits * shared_by.ranks;
  for (std::size_t at = 0; at < units.size(); at += window) {
    const std::span<ReadUnit> of_window =
        std::span(units).subspan(at, std::min(window, units.size() - at));
    const std::size_t own = of_window.size() * shared_by.place / shared_by.ranks;
    std::rotate(of_window.begin(), of_window.begin() + static_cast<std::ptrdiff_t>(own),
                of_window.end());
  }
  return units;
}

}  // namespace varve
