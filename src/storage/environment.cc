#include "storage/environment.h"

#include <charconv>
#include <cstdlib>

namespace varve {

std::optional<std::string> ProcessEnvironment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value != nullptr && *value != '\0' ? std::optional<std::string>(value) : std::nullopt;
}

Result<std::optional<std::int64_t>> NumberSetting(const Environment& environment,
                                                  const std::string& variable, std::int64_t least,
                                                  std::int64_t most, const char* unit) {
  const auto text = environment(variable);
  if (!text) {
    return std::optional<std::int64_t>();
  }
  std::int64_t value = 0;
  const char* const end = text->data() + text->size();
  if (std::from_chars(text->data(), end, value).ptr != end || value < least || value > most) {
    return InvalidArgument(variable + "=" + *text + ": want whole " + unit + " from " +
                           std::to_string(least) + " to " + std::to_string(most));
  }
  return std::optional(value);
}

}  // namespace varve
