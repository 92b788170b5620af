#include "tensor/cast.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace varve {
namespace {

template <class T>
T LoadAs(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

float FromBFloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t ToBFloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x40U);  // Quiet, with its sign.
  }
  // Adding just under a half, and a whole half where the kept part is odd, rounds ties to even.
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

/// Decodes a float with `exponent_bits` and `mantissa_bits`, of `width` bits in all with the sign,
/// that has infinities and NaNs as IEEE 754 says.
double FromIeee(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const std::uint32_t mantissa = bits & ((1U << mantissa_bits) - 1);
  const auto exponent = static_cast<int>((bits >> mantissa_bits) & ((1U << exponent_bits) - 1));
  const bool negative = ((bits >> (exponent_bits + mantissa_bits)) & 1U) != 0;
  double value = 0;
  if (exponent == (1 << exponent_bits) - 1) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(mantissa + (1U << mantissa_bits), exponent - bias - mantissa_bits);
  }
  return negative ? -value : value;
}

/// Decodes a float8 of the types without infinities: `nan` is the magnitude (or, for the
/// unsigned-zero types, the whole byte) that stands for NaN.
double FromFloat8(std::uint8_t bits, int exponent_bits, int mantissa_bits, int bias, bool fnuz) {
  const bool nan = fnuz ? bits == 0x80 : (bits & 0x7F) == 0x7F;
  if (nan) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double value =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                    : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return (bits & 0x80) != 0 ? -value : value;
}

double FromFloat16(std::uint16_t bits) { return FromIeee(bits, 5, 10); }

std::uint16_t ToFloat16(float value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>(sign | 0x7E00U);
  }
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude >= 65520.0) {  // Half way from the largest finite value, 65504, to 2^16.
    return static_cast<std::uint16_t>(sign | 0x7C00U);
  }
  if (magnitude < 0x1p-14) {  // Subnormal: a multiple of 2^-24.
    return static_cast<std::uint16_t>(
        sign | static_cast<std::uint16_t>(std::nearbyint(std::ldexp(magnitude, 24))));
  }
  int exponent = 0;
  const double fraction = std::frexp(magnitude, &exponent);  // In [0.5, 1).
  const auto mantissa = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(fraction, 11)));
  // A mantissa that rounds up to 2^11 carries into the exponent by itself.
  return static_cast<std::uint16_t>(sign |
                                    ((static_cast<std::uint32_t>(exponent + 13) << 10) + mantissa));
}

double LoadFloat(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kFloat16: return FromFloat16(LoadAs<std::uint16_t>(at));
    case DType::kBFloat16: return FromBFloat16(LoadAs<std::uint16_t>(at));
    case DType::kFloat32: return LoadAs<float>(at);
    default: return LoadAs<double>(at);
  }
}

void StoreFloat(DType dtype, double value, std::byte* at) {
  const auto store = [at](auto bits) { std::memcpy(at, &bits, sizeof(bits)); };
  switch (dtype) {
    case DType::kFloat16: store(ToFloat16(static_cast<float>(value))); return;
    case DType::kBFloat16: store(ToBFloat16(static_cast<float>(value))); return;
    case DType::kFloat32: store(static_cast<float>(value)); return;
    default: store(value); return;
  }
}

double RealAt(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kBool: return LoadAs<std::uint8_t>(at) != 0 ? 1 : 0;
    case DType::kUInt8: return LoadAs<std::uint8_t>(at);
    case DType::kInt8: return LoadAs<std::int8_t>(at);
    case DType::kUInt16: return LoadAs<std::uint16_t>(at);
    case DType::kInt16: return LoadAs<std::int16_t>(at);
    case DType::kUInt32: return LoadAs<std::uint32_t>(at);
    case DType::kInt32: return LoadAs<std::int32_t>(at);
    case DType::kUInt64: return static_cast<double>(LoadAs<std::uint64_t>(at));
    case DType::kInt64: return static_cast<double>(LoadAs<std::int64_t>(at));
    case DType::kFloat8E5M2: return FromIeee(LoadAs<std::uint8_t>(at), 5, 2);
    case DType::kFloat8E4M3FN: return FromFloat8(LoadAs<std::uint8_t>(at), 4, 3, 7, false);
    case DType::kFloat8E4M3FNUZ: return FromFloat8(LoadAs<std::uint8_t>(at), 4, 3, 8, true);
    case DType::kFloat8E5M2FNUZ: return FromFloat8(LoadAs<std::uint8_t>(at), 5, 2, 16, true);
    case DType::kFloat8E8M0FNU: {
      const auto bits = LoadAs<std::uint8_t>(at);
      return bits == 0xFF ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, bits - 127);
    }
    default: return LoadFloat(dtype, at);
  }
}

double FromFloat4(unsigned bits) {
  constexpr std::array<double, 8> kMagnitudes{0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (bits & 8U) != 0 ? -kMagnitudes[bits & 7U] : kMagnitudes[bits & 7U];
}

}  // namespace

bool IsCastable(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 || dtype == DType::kFloat32 ||
         dtype == DType::kFloat64;
}

void Cast(DType from, std::span<const std::byte> source, DType to, std::span<std::byte> target) {
  const std::size_t from_size = ItemSize(from);
  const std::size_t to_size = ItemSize(to);
  const std::size_t count = source.size() / from_size;
  if (from == DType::kFloat32 && to == DType::kBFloat16) {  // The common cases, without the switch.
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint16_t bits = ToBFloat16(LoadAs<float>(source.data() + i * 4));
      std::memcpy(target.data() + i * 2, &bits, 2);
    }
    return;
  }
  if (from == DType::kBFloat16 && to == DType::kFloat32) {
    for (std::size_t i = 0; i < count; ++i) {
      const float value = FromBFloat16(LoadAs<std::uint16_t>(source.data() + i * 2));
      std::memcpy(target.data() + i * 4, &value, 4);
    }
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    StoreFloat(to, LoadFloat(from, source.data() + i * from_size), target.data() + i * to_size);
  }
}

std::size_t DoublesPerElement(DType dtype) {
  switch (dtype) {
    case DType::kComplex32:
    case DType::kComplex64:
    case DType::kComplex128:
    case DType::kFloat4E2M1FNX2: return 2;
    default: return 1;
  }
}

std::size_t ToDoubles(DType from, std::span<const std::byte> source, std::span<double> target) {
  if (from == DType::kFloat4E2M1FNX2) {
    for (std::size_t i = 0; i < source.size(); ++i) {
      const auto bits = std::to_integer<unsigned>(source[i]);
      target[2 * i] = FromFloat4(bits & 15U);
      target[2 * i + 1] = FromFloat4(bits >> 4);
    }
    return 2 * source.size();
  }
  const DType part = from == DType::kComplex32    ? DType::kFloat16
                     : from == DType::kComplex64  ? DType::kFloat32
                     : from == DType::kComplex128 ? DType::kFloat64
                                                  : from;
  const std::size_t size = ItemSize(part);
  const std::size_t count = source.size() / size;
  for (std::size_t i = 0; i < count; ++i) {
    target[i] = RealAt(part, source.data() + i * size);
  }
  return count;
}

}  // namespace varve
