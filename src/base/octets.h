/// Ids and hashes, arrays of a fixed number of bytes, in what ByteWriter writes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace varve {

template <std::size_t kSize>
void PutOctets(const std::array<std::uint8_t, kSize>& octets, ByteWriter* out) {
  for (const std::uint8_t octet : octets) {
    out->U8(octet);
  }
}

template <std::size_t kSize>
void GetOctets(ByteReader* in, std::array<std::uint8_t, kSize>* octets) {
  for (std::uint8_t& octet : *octets) {
    octet = in->U8();
  }
}

}  // namespace varve
