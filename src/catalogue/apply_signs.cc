// Conjugation and negation of tensors that are stored as their memory is, with a flag for either.

#include <bit>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "catalogue/chunk_source.h"
#include "tensor/box.h"
#include "tensor/floats.h"

namespace varve {
namespace {

/// Flips bits of every element of a strided box: signs, for floats.
template <class Flip>
void ForEachElement(const StridedMemory& memory, const Box& common, Flip flip) {
  const std::size_t rank = common.sizes.size();
  Dims index(rank, 0);
  const std::uint64_t count = Volume(common.sizes);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::int64_t at = 0;
    for (std::size_t d = 0; d < rank; ++d) {
      const auto in_box = common.offsets[d] - memory.box.offsets[d] + index[d];
      at += static_cast<std::int64_t>(in_box) * memory.strides[d];
    }
    flip(memory.data + at * static_cast<std::int64_t>(memory.item_size));
    for (std::size_t d = rank; d-- > 0;) {
      if (++index[d] < common.sizes[d]) {
        break;
      }
      index[d] = 0;
    }
  }
}

bool IsSignedInteger(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kInt16 || dtype == DType::kInt32 ||
         dtype == DType::kInt64;
}

/// Negates a little-endian two's complement integer of `width` bytes.
void NegateInteger(std::byte* at, std::size_t width) {
  unsigned carry = 1;
  for (std::size_t i = 0; i < width; ++i) {
    const unsigned sum = (std::to_integer<unsigned>(at[i]) ^ 0xFFU) + carry;
    at[i] = static_cast<std::byte>(sum);
    carry = sum >> 8;
  }
}

}  // namespace

Status ApplySigns(bool conj, bool neg, DType dtype, const StridedMemory& memory,
                  const Box& common) {
  if (!conj && !neg) {
    return Status::Ok();
  }
  const Floats floats = FloatsOf(dtype);
  if (floats.width == 0 && !conj && IsSignedInteger(dtype)) {
    ForEachElement(memory, common, [&](std::byte* at) { NegateInteger(at, memory.item_size); });
    return Status::Ok();
  }
  if (floats.width == 0 || (conj && floats.count != 2)) {
    return Unimplemented("a " + std::string(conj ? "conjugated " : "negated ") +
                         std::string(DTypeName(dtype)) + " tensor");
  }
  // Little-endian: the sign is the top bit of the last byte. Part 0 is real, part 1 imaginary.
  ForEachElement(memory, common, [&](std::byte* at) {
    for (std::size_t part = 0; part < floats.count; ++part) {
      if (neg != (conj && part == 1)) {
        at[(part + 1) * floats.width - 1] ^= std::byte{0x80};
      }
    }
  });
  return Status::Ok();
}

}  // namespace varve
