/// Classes of ASCII characters, without a locale.
#pragma once

namespace varve {

constexpr bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace varve
