/// The floating-point numbers that an element consists of.
#pragma once

#include <cstddef>

#include "varve/tensor.h"

namespace varve {

/// Width of each in bytes, and their number: two, real part first, for a complex type. Both are 0
/// for integers.
struct Floats {
  std::size_t width = 0;
  std::size_t count = 0;
};

constexpr Floats FloatsOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBFloat16: return {2, 1};
    case DType::kFloat32: return {4, 1};
    case DType::kFloat64: return {8, 1};
    case DType::kComplex32: return {2, 2};
    case DType::kComplex64: return {4, 2};
    case DType::kComplex128: return {8, 2};
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2: return {1, 1};
    default: return {};
  }
}

}  // namespace varve
