#include "interop/dcp/data_name.h"

#include <charconv>
#include <limits>
#include <system_error>

namespace varve {
namespace {

constexpr std::string_view kPrefix = "__";
constexpr std::string_view kSuffix = ".distcp";

/// Takes a number off the front. False when there is none.
bool TakeNumber(std::string_view* text, std::uint64_t* number) {
  const auto parsed = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (parsed.ec != std::errc() || *number == std::numeric_limits<std::uint64_t>::max()) {
    return false;
  }
  text->remove_prefix(static_cast<std::size_t>(parsed.ptr - text->data()));
  return true;
}

}  // namespace

std::string ToString(const DcpDataName& name) {
  return std::string(kPrefix) + std::to_string(name.rank) + "_" + std::to_string(name.number) +
         std::string(kSuffix);
}

std::optional<DcpDataName> ParseDcpDataName(std::string_view name) {
  DcpDataName parsed;
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  name.remove_prefix(kPrefix.size());
  if (!TakeNumber(&name, &parsed.rank) || !name.starts_with('_')) {
    return std::nullopt;
  }
  name.remove_prefix(1);
  return TakeNumber(&name, &parsed.number) && name == kSuffix ? std::optional(parsed)
                                                              : std::nullopt;
}

}  // namespace varve
