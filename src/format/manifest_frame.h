/// The frame of a manifest: docs/format.md, section 6.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace varve {

// Magic, format version, compressed size, plain size, zstd frame, CRC-32C of all before.
inline constexpr std::string_view kManifestMagic = "VARVEMF\n";
inline constexpr std::size_t kManifestHeadBytes = 8 + 4 + 8 + 8;
inline constexpr std::size_t kManifestCrcBytes = 4;
inline constexpr std::uint64_t kMaxPlainBytes = (std::uint64_t{1} << 31) - 1;  ///< FlatBuffers'.

}  // namespace varve
