/// Arithmetic on untrusted sizes: every sum or product that could wrap goes through here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace varve {

inline std::optional<std::uint64_t> CheckedAdd(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    return std::nullopt;
  }
  return sum;
}

inline std::optional<std::uint64_t> CheckedMul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    return std::nullopt;
  }
  return product;
}

/// Returns the product of all values, 1 for none.
inline std::optional<std::uint64_t> CheckedProduct(std::span<const std::uint64_t> values) {
  std::uint64_t product = 1;
  // A zero factor makes the product zero even where the others would overflow.
  for (const std::uint64_t value : values) {
    if (value == 0) {
      return 0;
    }
  }
  for (const std::uint64_t value : values) {
    const auto next = CheckedMul(product, value);
    if (!next) {
      return std::nullopt;
    }
    product = *next;
  }
  return product;
}

/// Returns `value` rounded up to a multiple of `unit` (a power of two not required). No overflow
/// check: for sizes already known to be in range.
inline std::uint64_t RoundUp(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

inline std::uint64_t DivideUp(std::uint64_t value, std::uint64_t unit) {
  return value / unit + (value % unit != 0 ? 1 : 0);
}

}  // namespace varve
