/// Sizes or offsets of a tensor, one per dimension.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <utility>

namespace varve {

/// Sizes or offsets, one per dimension, outermost first. A 0-d tensor has none.
///
/// Has what std::vector has of the same names, and keeps up to four numbers in itself: a state has
/// three such lists for each of a hundred thousand tensors, and a third of the time to save small
/// ones went into their memory.
class Dims {
 public:
  using value_type = std::uint64_t;
  using size_type = std::size_t;
  using iterator = std::uint64_t*;
  using const_iterator = const std::uint64_t*;

  Dims() = default;
  explicit Dims(std::size_t count, std::uint64_t value = 0) { resize(count, value); }
  Dims(std::initializer_list<std::uint64_t> numbers) : Dims(numbers.begin(), numbers.end()) {}
  template <std::input_iterator From>
  Dims(From first, From last) {
    for (; first != last; ++first) {
      push_back(*first);
    }
  }

  Dims(const Dims& other) : Dims(other.begin(), other.end()) {}
  Dims(Dims&& other) noexcept
      : few_(other.few_),
        many_(std::move(other.many_)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, kFew)) {}
  Dims& operator=(const Dims& other) {
    if (this != &other) {
      assign(other.begin(), other.end());
    }
    return *this;
  }
  Dims& operator=(Dims&& other) noexcept {
    few_ = other.few_;
    many_ = std::move(other.many_);
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, kFew);
    return *this;
  }
  ~Dims() = default;

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::uint64_t* data() { return many_ ? many_.get() : few_.data(); }
  [[nodiscard]] const std::uint64_t* data() const { return many_ ? many_.get() : few_.data(); }
  [[nodiscard]] iterator begin() { return data(); }
  [[nodiscard]] iterator end() { return data() + size_; }
  [[nodiscard]] const_iterator begin() const { return data(); }
  [[nodiscard]] const_iterator end() const { return data() + size_; }
  std::uint64_t& operator[](std::size_t at) { return data()[at]; }
  const std::uint64_t& operator[](std::size_t at) const { return data()[at]; }
  std::uint64_t& front() { return *begin(); }
  [[nodiscard]] const std::uint64_t& front() const { return *begin(); }
  std::uint64_t& back() { return data()[size_ - 1]; }
  [[nodiscard]] const std::uint64_t& back() const { return data()[size_ - 1]; }

  void push_back(std::uint64_t number) { emplace_back(number); }
  std::uint64_t& emplace_back(std::uint64_t number = 0) {
    if (size_ == capacity_) {
      reserve(std::size_t{2} * capacity_);
    }
    return data()[size_++] = number;
  }
  void pop_back() { --size_; }
  void clear() { size_ = 0; }
  void reserve(std::size_t count) {
    if (count > capacity_) {
      auto more = std::make_unique<std::uint64_t[]>(count);
      std::copy(begin(), end(), more.get());
      many_ = std::move(more);
      capacity_ = static_cast<std::uint32_t>(count);
    }
  }
  void resize(std::size_t count, std::uint64_t value = 0) {
    reserve(count);
    if (count > size_) {
      std::fill(end(), data() + count, value);
    }
    size_ = static_cast<std::uint32_t>(count);
  }
  void assign(std::size_t count, std::uint64_t value) {
    clear();
    resize(count, value);
  }
  /// `first` and `last` are not of this list.
  template <std::input_iterator From>
  void assign(From first, From last) {
    clear();
    for (; first != last; ++first) {
      push_back(*first);
    }
  }

  friend bool operator==(const Dims& a, const Dims& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }
  friend std::strong_ordering operator<=>(const Dims& a, const Dims& b) {
    return std::lexicographical_compare_three_way(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  static constexpr std::uint32_t kFew = 4;

  std::array<std::uint64_t, kFew> few_{};
  std::unique_ptr<std::uint64_t[]> many_;  // In place of few_, where there are more.
  std::uint32_t size_ = 0;
  std::uint32_t capacity_ = kFew;
};

}  // namespace varve
