#include <array>
#include <cstddef>

#include "varve/tensor.h"

namespace varve {
namespace {

struct DTypeRow {
  std::string_view name;
  std::uint64_t item_size;
  std::string_view safetensors;  // Empty: safetensors cannot name it.
};

// Indexed by DType. Safetensors names as in safetensors 0.8.
constexpr std::array<DTypeRow, kDTypeCount> kRows{{
    {"bool", 1, "BOOL"},
    {"uint8", 1, "U8"},
    {"int8", 1, "I8"},
    {"uint16", 2, "U16"},
    {"int16", 2, "I16"},
    {"uint32", 4, "U32"},
    {"int32", 4, "I32"},
    {"uint64", 8, "U64"},
    {"int64", 8, "I64"},
    {"float16", 2, "F16"},
    {"bfloat16", 2, "BF16"},
    {"float32", 4, "F32"},
    {"float64", 8, "F64"},
    {"complex32", 4, ""},
    {"complex64", 8, "C64"},
    {"complex128", 16, ""},
    {"float8_e4m3fn", 1, "F8_E4M3"},
    {"float8_e5m2", 1, "F8_E5M2"},
    {"float8_e4m3fnuz", 1, "F8_E4M3FNUZ"},
    {"float8_e5m2fnuz", 1, "F8_E5M2FNUZ"},
    {"float8_e8m0fnu", 1, "F8_E8M0"},
    {"float4_e2m1fn_x2", 1, "F4"},
}};

const DTypeRow& Row(DType dtype) { return kRows[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::uint64_t ItemSize(DType dtype) { return Row(dtype).item_size; }

std::string_view DTypeName(DType dtype) { return Row(dtype).name; }

std::optional<DType> DTypeFromName(std::string_view name) {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name == name) {
      return static_cast<DType>(i);
    }
  }
  return std::nullopt;
}

std::optional<std::string_view> SafetensorsName(DType dtype) {
  if (Row(dtype).safetensors.empty()) {
    return std::nullopt;
  }
  return Row(dtype).safetensors;
}

std::optional<DType> DTypeFromSafetensorsName(std::string_view name) {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (!kRows[i].safetensors.empty() && kRows[i].safetensors == name) {
      return static_cast<DType>(i);
    }
  }
  return std::nullopt;
}

}  // namespace varve
