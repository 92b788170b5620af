/// The parts of a tensor: its element type, its shape, and the place of a piece in the whole.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace varve {

/// Every element type Varve stores. Values are written into manifests: never renumber, only append.
enum class DType : std::uint8_t {
  kBool = 0,
  kUInt8 = 1,
  kInt8 = 2,
  kUInt16 = 3,
  kInt16 = 4,
  kUInt32 = 5,
  kInt32 = 6,
  kUInt64 = 7,
  kInt64 = 8,
  kFloat16 = 9,
  kBFloat16 = 10,
  kFloat32 = 11,
  kFloat64 = 12,
  kComplex32 = 13,
  kComplex64 = 14,
  kComplex128 = 15,
  kFloat8E4M3FN = 16,
  kFloat8E5M2 = 17,
  kFloat8E4M3FNUZ = 18,
  kFloat8E5M2FNUZ = 19,
  kFloat8E8M0FNU = 20,
  kFloat4E2M1FNX2 = 21,  ///< Two 4-bit floats in one byte; one element is one byte, as in PyTorch.
};

inline constexpr std::uint8_t kDTypeCount = 22;

/// Returns the bytes of one element.
std::uint64_t ItemSize(DType dtype);

/// Returns PyTorch's name without "torch.": "float32", "bfloat16", "float8_e4m3fn".
std::string_view DTypeName(DType dtype);
std::optional<DType> DTypeFromName(std::string_view name);

/// Returns the name that safetensors has for this type, or nothing when it has none (complex32,
/// complex128).
std::optional<std::string_view> SafetensorsName(DType dtype);
std::optional<DType> DTypeFromSafetensorsName(std::string_view name);

/// Sizes or offsets, one per dimension, outermost first. A 0-d tensor has none.
///
/// Has what std::vector has of the same names, and keeps up to four numbers in itself: a state has
/// three such lists for each of a hundred thousand tensors, and allocating them took a tenth of the
/// time to save small ones.
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

  Dims(const Dims& other) : few_(other.few_), size_(other.many_ ? 0 : other.size_) {
    if (other.many_) {
      assign(other.begin(), other.end());
    }
  }
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

/// Steps between neighbouring elements, in elements, one per dimension; may be zero or negative.
using Strides = std::vector<std::int64_t>;

/// A box of elements inside a tensor: in dimension d it covers [offsets[d], offsets[d] + sizes[d]).
/// Both lists are as long as the tensor has dimensions. A box with a zero size is empty.
struct Box {
  Dims offsets;
  Dims sizes;
  friend bool operator==(const Box&, const Box&) = default;
};

/// Returns the box that covers a whole tensor of this shape.
Box WholeBox(const Dims& shape);

/// Returns "[0:4, 8:16]", or "[]" for a 0-d tensor.
std::string ToString(const Box& box);
/// Returns "[4, 16]".
std::string ToString(const Dims& dims);

}  // namespace varve
