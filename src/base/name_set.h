/// A set of names, of which a state has tens of thousands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checksum.h"

namespace varve {

/// Answers whether it holds a name, and nothing else. The names' text must outlive it. It takes a
/// quarter of the time of std::unordered_set, which allocates memory for each name.
class NameSet {
 public:
  /// `expected` names fit without a move.
  explicit NameSet(std::size_t expected = 0) {
    std::size_t slots = kFewestSlots;
    while (slots < kSlotsPerName * expected) {
      slots *= 2;
    }
    slots_.resize(slots);
  }

  /// Returns true where the name is new.
  bool Insert(std::string_view name) {
    if (kSlotsPerName * (size_ + 1) > slots_.size()) {
      Grow();
    }
    const std::uint64_t hash = XxhOfName(name);
    Slot& slot = slots_[Find(hash, name)];
    if (slot.is_used) {
      return false;
    }
    slot = {hash, name, true};
    ++size_;
    return true;
  }

  [[nodiscard]] bool Contains(std::string_view name) const {
    return slots_[Find(XxhOfName(name), name)].is_used;
  }

  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::string_view name;
    bool is_used = false;
  };
  static constexpr std::size_t kFewestSlots = 16;  // A power of two, as all sizes.
  static constexpr std::size_t kSlotsPerName = 2;

  /// Returns the slot that holds the name, or the free one where it belongs.
  [[nodiscard]] std::size_t Find(std::uint64_t hash, std::string_view name) const {
    std::size_t at = hash & (slots_.size() - 1);
    while (slots_[at].is_used && (slots_[at].hash != hash || slots_[at].name != name)) {
      at = (at + 1) & (slots_.size() - 1);
    }
    return at;
  }

  void Grow() {
    std::vector<Slot> old(2 * slots_.size());
    std::swap(old, slots_);
    for (const Slot& slot : old) {
      if (slot.is_used) {
        slots_[Find(slot.hash, slot.name)] = slot;
      }
    }
  }

  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

}  // namespace varve
