/// The parts of a tensor: its element type, its shape, and the place of a piece in the whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "varve/dims.h"

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
