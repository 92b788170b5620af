/// A growing list of trivial values for inner loops: pushing is a compare and a store, and room
/// that is not used yet is never written, so that it costs address space and no memory.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <memory>
#include <type_traits>

namespace varve {

template <class T>
class PodList {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_default_constructible_v<T>);

 public:
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] const T* data() const { return values_.get(); }
  [[nodiscard]] T& operator[](std::size_t i) {
    assert(i < size_);
    return values_[i];
  }
  [[nodiscard]] const T& operator[](std::size_t i) const {
    assert(i < size_);
    return values_[i];
  }
  [[nodiscard]] T& back() { return (*this)[size_ - 1]; }

  void Reserve(std::size_t capacity) {
    if (capacity > capacity_) {
      MoveTo(capacity);
    }
  }

  void Push(const T& value) {
    if (size_ == capacity_) [[unlikely]] {
      const T copy = value;  // It may lie in the list.
      MoveTo(std::max<std::size_t>(2 * capacity_, 16));
      values_[size_++] = copy;
      return;
    }
    values_[size_++] = value;
  }

  /// Makes the list longer by `count` values that the caller sets.
  void Extend(std::size_t count) {
    if (count > capacity_ - size_) {
      MoveTo(std::max(2 * capacity_, size_ + count));
    }
    size_ += count;
  }

  /// Requires: size <= size().
  void Cut(std::size_t size) {
    assert(size <= size_);
    size_ = size;
  }

 private:
  void MoveTo(std::size_t capacity) {
    auto values = std::make_unique_for_overwrite<T[]>(capacity);
    std::copy_n(values_.get(), size_, values.get());
    values_ = std::move(values);
    capacity_ = capacity;
  }

  std::unique_ptr<T[]> values_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace varve
