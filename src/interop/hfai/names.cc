#include "interop/hfai/names.h"

#include <charconv>
#include <system_error>

namespace varve {
namespace {

constexpr std::string_view kPrefix = "PART_";
constexpr std::string_view kSuffix = ".pt";
constexpr std::size_t kDigits = 3;

}  // namespace

std::string HfaiPartName(std::uint64_t number) {
  const std::string digits = std::to_string(number);
  const std::size_t zeros = digits.size() < kDigits ? kDigits - digits.size() : 0;
  return std::string(kPrefix) + std::string(zeros, '0') + digits + std::string(kSuffix);
}

std::optional<std::uint32_t> HfaiPartNumber(std::string_view name) {
  if (!LooksLikeHfaiPart(name)) {
    return std::nullopt;
  }
  const std::string_view digits =
      name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
  std::uint32_t number = 0;
  const char* const begin = digits.data();
  const char* const end = begin + digits.size();
  const auto [stopped, error] = std::from_chars(begin, end, number);
  const bool is_number = error == std::errc{} && stopped == end;
  return is_number && HfaiPartName(number) == name ? std::optional(number) : std::nullopt;
}

bool LooksLikeHfaiPart(std::string_view name) {
  return name.size() >= kPrefix.size() + kSuffix.size() && name.starts_with(kPrefix) &&
         name.ends_with(kSuffix);
}

}  // namespace varve
