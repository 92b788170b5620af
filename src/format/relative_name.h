/// Names of files below a checkpoint's directory. Pure.
#pragma once

#include <string_view>

namespace varve {

/// Returns true for a name that leads to a file below the directory it is relative to: parts that
/// are not empty, "." or "..", at most 255 bytes each and 1024 in all, and no control characters.
bool IsRelativeName(std::string_view name);

}  // namespace varve
