/// Conversion between floating-point types, as PyTorch's `.to(dtype)` does it: to the nearest, ties
/// to even, too large becomes infinite, NaN stays NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "varve/tensor.h"

namespace varve {

/// Returns true for float16, bfloat16, float32 and float64.
bool IsCastable(DType dtype);

/// Converts `source` (elements of type `from`) into `target` (as many of type `to`). Both castable.
void Cast(DType from, std::span<const std::byte> source, DType to, std::span<std::byte> target);

/// Converts elements of any real type to doubles: integers, bool, floats of 8 to 64 bits; integers
/// beyond 2^53 are rounded. Complex types and float4 count as their parts' floats: two per element.
/// Returns how many values were written; `target` must have room for DoublesPerElement of each.
std::size_t ToDoubles(DType from, std::span<const std::byte> source, std::span<double> target);
std::size_t DoublesPerElement(DType dtype);

}  // namespace varve
