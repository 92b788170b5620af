/// Names of DCP's data files: "__R_N.distcp".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace varve {

struct DcpDataName {
  std::uint64_t rank = 0;
  std::uint64_t number = 0;  ///< 0 where a save begins anew; higher beside older files.
};

std::string ToString(const DcpDataName& name);

/// Returns nothing for any other name, a path included, and for a number too large to be followed
/// by another.
std::optional<DcpDataName> ParseDcpDataName(std::string_view name);

}  // namespace varve
