/// Colours on a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace varve::cli {

enum class Colour : std::uint8_t { kNone, kGood, kBad, kOdd };

/// Returns true when what goes to `fd` (standard output or error) may be coloured: it is a terminal
/// that knows colours, and NO_COLOR is unset or empty (no-color.org).
bool MayColour(int fd);

/// Returns `text` in `colour`: green, red or yellow; unchanged where `fd` takes none. Adds nothing
/// to the width on the screen.
std::string Painted(std::string_view text, Colour colour, int fd);

}  // namespace varve::cli
