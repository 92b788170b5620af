/// Appends JSON text. Only what the formats need: strings, numbers, and raw structure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "varve/tensor.h"

namespace varve {

/// Appends `text` as a JSON string with quotes. `text` must be UTF-8; control characters, quotes
/// and backslashes are escaped. The result is pure ASCII-or-UTF-8 and the same on every machine.
void AppendJsonString(std::string_view text, std::string* out);

/// Appends 123.
void AppendJsonNumber(std::uint64_t number, std::string* out);

/// Appends [1,2,3].
void AppendJsonDims(const Dims& dims, std::string* out);

/// Returns true when `text` is well-formed UTF-8 (no surrogates, no overlong forms).
bool IsUtf8(std::string_view text);

}  // namespace varve
