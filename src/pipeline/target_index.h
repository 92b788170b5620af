/// The search for the targets of a range of a file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipeline/file_reader.h"

namespace varve {

/// The targets of one file in order of where they begin, searchable by range.
class TargetIndex {
 public:
  explicit TargetIndex(std::vector<ReadTarget>* targets) : targets_(*targets) {
    std::sort(targets->begin(), targets->end(),
              [](const ReadTarget& a, const ReadTarget& b) { return Begin(a) < Begin(b); });
    std::uint64_t furthest = 0;
    for (const ReadTarget& target : *targets) {
      furthest = std::max(furthest, target.chunk_begin + target.region.extent().end);
      furthest_end_.push_back(furthest);
    }
  }

  template <class Visit>
  void ForEachIn(ByteRange range, Visit visit) const {
    const auto first = std::upper_bound(furthest_end_.begin(), furthest_end_.end(), range.begin);
    for (auto i = static_cast<std::size_t>(first - furthest_end_.begin());
         i < targets_.size() && Begin(targets_[i]) < range.end; ++i) {
      if (targets_[i].chunk_begin + targets_[i].region.extent().end > range.begin) {
        visit(targets_[i]);
      }
    }
  }

 private:
  static std::uint64_t Begin(const ReadTarget& target) {
    return target.chunk_begin + target.region.extent().begin;
  }
  const std::vector<ReadTarget>& targets_;
  std::vector<std::uint64_t> furthest_end_;
};

}  // namespace varve
