#include "tensor/overlap.h"

#include <algorithm>
#include <cstdint>

#include "tensor/box.h"

namespace varve {
namespace {

using Pair = OverlappingPair;
using Boxes = std::span<const Box* const>;

// A group of this size is compared pair by pair.
constexpr std::size_t kSmall = 8;

// The sum of all groups' sizes may become this many times the list's own, and kFreeWork more.
// Straight cuts make it no larger than the list in each of some twenty levels.
constexpr std::uint64_t kMaxWork = 64;
constexpr std::uint64_t kFreeWork = std::uint64_t{1} << 20;

std::uint64_t Begin(const Box* box, std::size_t dim) { return box->offsets[dim]; }
std::uint64_t End(const Box* box, std::size_t dim) { return box->offsets[dim] + box->sizes[dim]; }

bool Overlap(const Box* a, const Box* b) {
  for (std::size_t d = 0; d < a->sizes.size(); ++d) {
    if (Begin(a, d) >= End(b, d) || Begin(b, d) >= End(a, d)) {
      return false;
    }
  }
  return true;
}

/// Splits groups of boxes by planes until no pair is left to compare. A box that a plane cuts goes
/// to both sides.
class Splitter {
 public:
  explicit Splitter(Boxes boxes) : boxes_(boxes) {}

  Result<Pair> Run(std::vector<std::size_t> all) {
    std::uint64_t work_left = kMaxWork * all.size() + kFreeWork;
    groups_.push_back(std::move(all));
    while (!groups_.empty()) {
      const std::vector<std::size_t> group = std::move(groups_.back());
      groups_.pop_back();
      if (group.size() <= kSmall) {
        if (const Pair pair = ComparePairs(group)) {
          return pair;
        }
        continue;
      }
      if (group.size() > work_left) {
        return InvalidArgument("the boxes interlock too much to be compared");
      }
      work_left -= group.size();
      const auto plane = BestPlane(group);
      if (!plane) {
        return Pair({group[0], group[1]});  // All have a point in common.
      }
      Split(group, *plane);
    }
    return Pair();
  }

 private:
  struct Plane {
    std::size_t dim = 0;
    std::uint64_t at = 0;
    std::size_t sum = 0;  // Sizes of both sides together.
  };

  [[nodiscard]] Pair ComparePairs(const std::vector<std::size_t>& group) const {
    for (std::size_t i = 0; i < group.size(); ++i) {
      for (std::size_t k = i + 1; k < group.size(); ++k) {
        if (Overlap(boxes_[group[i]], boxes_[group[k]])) {
          return Pair({group[i], group[k]});
        }
      }
    }
    return std::nullopt;
  }

  /// Returns the plane that cuts the fewest boxes, among one for each dimension: the middle one,
  /// as far as both sides become smaller. Nothing where no dimension parts any two boxes.
  std::optional<Plane> BestPlane(const std::vector<std::size_t>& group) {
    std::optional<Plane> best;
    for (std::size_t d = 0; d < boxes_[group[0]]->sizes.size(); ++d) {
      begins_.clear();
      std::uint64_t last_begin = 0;
      std::uint64_t first_end = End(boxes_[group[0]], d);
      for (const std::size_t i : group) {
        begins_.push_back(Begin(boxes_[i], d));
        last_begin = std::max(last_begin, begins_.back());
        first_end = std::min(first_end, End(boxes_[i], d));
      }
      if (first_end > last_begin) {
        continue;
      }
      const auto middle = begins_.begin() + static_cast<std::ptrdiff_t>(begins_.size() / 2);
      std::nth_element(begins_.begin(), middle, begins_.end());
      Plane plane{d, std::clamp(*middle, first_end, last_begin), 0};
      for (const std::size_t i : group) {
        plane.sum += Begin(boxes_[i], d) < plane.at ? 1U : 0U;
        plane.sum += End(boxes_[i], d) > plane.at ? 1U : 0U;
      }
      if (!best || plane.sum < best->sum) {
        best = plane;
      }
      if (best->sum == group.size()) {
        break;  // Cuts none.
      }
    }
    return best;
  }

  void Split(const std::vector<std::size_t>& group, const Plane& plane) {
    std::vector<std::size_t> before;
    std::vector<std::size_t> after;
    for (const std::size_t i : group) {
      if (Begin(boxes_[i], plane.dim) < plane.at) {
        before.push_back(i);
      }
      if (End(boxes_[i], plane.dim) > plane.at) {
        after.push_back(i);
      }
    }
    groups_.push_back(std::move(before));
    groups_.push_back(std::move(after));
  }

  const Boxes boxes_;
  std::vector<std::vector<std::size_t>> groups_;
  std::vector<std::uint64_t> begins_;
};

/// Returns true when the boxes are slices along one dimension, in order: the usual case, in one
/// pass.
bool AreSlices(Boxes boxes, const std::vector<std::size_t>& order) {
  for (std::size_t d = 0; d < boxes[order[0]]->sizes.size(); ++d) {
    std::size_t i = 1;
    while (i < order.size() && End(boxes[order[i - 1]], d) <= Begin(boxes[order[i]], d)) {
      ++i;
    }
    if (i == order.size()) {
      return true;
    }
  }
  return false;
}

}  // namespace

Result<Pair> FindOverlap(Boxes boxes) {
  std::vector<std::size_t> full;
  full.reserve(boxes.size());
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    if (!IsEmpty(*boxes[i])) {
      full.push_back(i);
    }
  }
  if (full.size() < 2 || AreSlices(boxes, full)) {
    return Pair();
  }
  return Splitter(boxes).Run(std::move(full));
}

Result<Pair> FindOverlap(const std::vector<Box>& boxes) {
  std::vector<const Box*> all;
  all.reserve(boxes.size());
  for (const Box& box : boxes) {
    all.push_back(&box);
  }
  return FindOverlap(Boxes(all));
}

}  // namespace varve
