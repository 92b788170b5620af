/// Version of the library and of the on-disk format it writes.
#pragma once

#include <cstdint>
#include <string_view>

namespace varve {

/// Returns the library's version, "major.minor.patch".
std::string_view Version();

/// The native format version written by this library. Readers accept every version up to this one
/// and refuse newer ones with a message; see docs/format.md.
inline constexpr std::uint32_t kFormatVersion = 1;

}  // namespace varve
