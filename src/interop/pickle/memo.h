/// The memo of a pickle: nodes by the numbers that PUT and MEMOIZE give them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "interop/pickle/tree.h"

namespace varve {

/// Picklers number from 0 upwards without gaps, so the memo is a vector. A hostile pickle may use
/// any number; those far outside go to a map, and memory stays in proportion to the PUTs.
class PickleMemo {
 public:
  /// The result of Get for a number that has been forgotten.
  static constexpr PickleRef kForgotten = kNoPickle - 1;

  void Reserve(std::uint64_t entries) { dense_.Reserve(static_cast<std::size_t>(entries)); }

  /// Returns true for the number that a pickler would use next; Append then puts faster.
  [[nodiscard]] bool IsNext(std::uint64_t index) const {
    return index == dense_.size() && sparse_.empty();
  }
  void Append(PickleRef node) {
    dense_.Push(node);
    ++count_;
  }

  void Put(std::uint64_t index, PickleRef node) {
    while (IsNear(index) && index >= dense_.size()) {
      dense_.Push(kNoPickle);
    }
    PickleRef& entry = index < dense_.size() ? dense_[static_cast<std::size_t>(index)]
                                             : sparse_.try_emplace(index, kNoPickle).first->second;
    count_ += entry == kNoPickle ? 1 : 0;
    entry = node;
  }

  /// Returns how many numbers are in use; MEMOIZE takes it for the next.
  [[nodiscard]] std::uint64_t count() const { return count_; }

  /// Returns the node; kNoPickle where nothing was put.
  [[nodiscard]] PickleRef Get(std::uint64_t index) const {
    if (index < dense_.size() && dense_[static_cast<std::size_t>(index)] != kNoPickle) {
      return dense_[static_cast<std::size_t>(index)];
    }
    const auto found = sparse_.find(index);
    return found == sparse_.end() ? kNoPickle : found->second;
  }

  /// Returns true when a Put of this number would only append: the order that folding relies on.
  [[nodiscard]] bool Appends(std::uint64_t index) const {
    return sparse_.empty() && index >= dense_.size() && IsNear(index);
  }

  /// Returns the entries in the order they were made, while all Puts append; kNoPickle in gaps.
  [[nodiscard]] PodList<PickleRef>& entries() { return dense_; }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(dense_.size()); }

 private:
  [[nodiscard]] bool IsNear(std::uint64_t index) const { return index < 4 * count_ + 64; }

  PodList<PickleRef> dense_;
  std::unordered_map<std::uint64_t, PickleRef> sparse_;
  std::uint64_t count_ = 0;
};

}  // namespace varve
