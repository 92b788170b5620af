/// The 128-bit identity of a run of bytes.
#pragma once

#include <array>
#include <cstdint>

namespace varve {

/// An XXH3-128 hash in the algorithm's canonical (big-endian) byte order; its hex form is what the
/// `xxhsum -H2` tool prints. Identifies content inside one run; not safe against an attacker.
struct Hash128 {
  std::array<std::uint8_t, 16> bytes{};
  friend auto operator<=>(const Hash128&, const Hash128&) = default;
};

}  // namespace varve
