/// Where storages read their settings.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "varve/status.h"

namespace varve {

/// Returns an environment variable; nothing where it is not set or empty.
using Environment = std::function<std::optional<std::string>(const std::string&)>;

/// The process's.
std::optional<std::string> ProcessEnvironment(const std::string& name);

/// Returns the whole number from `least` to `most` in a variable; nothing where it is not set.
/// `unit` is what it counts, for the message. Errors: InvalidArgument for anything else.
Result<std::optional<std::int64_t>> NumberSetting(const Environment& environment,
                                                  const std::string& variable, std::int64_t least,
                                                  std::int64_t most, const char* unit);

}  // namespace varve
