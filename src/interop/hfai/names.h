/// The names of the files of a checkpoint of hfai.checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace varve {

/// The one version of the format that can be read and is written.
inline constexpr std::string_view kHfaiVersion = "2.0.0";

/// Returns "PART_007.pt": at least three digits.
std::string HfaiPartName(std::uint64_t number);

/// Returns the number of a name that HfaiPartName gives, or nothing.
std::optional<std::uint32_t> HfaiPartNumber(std::string_view name);

/// Returns true for every name that hfai counts as a part: `PART_*.pt`.
bool LooksLikeHfaiPart(std::string_view name);

}  // namespace varve
