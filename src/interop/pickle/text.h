/// The notations that text opcodes of pickle protocol 0 use for their arguments, and the check of
/// the strings of all protocols. Each function refuses (nothing, false) what Python would.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace varve {

/// Returns true for UTF-8 in which lone surrogates may stand as three bytes each (Python's
/// "surrogatepass"). Overlong forms and numbers above U+10FFFF are refused.
bool IsPickleUtf8(std::string_view text);

/// Returns untrusted text for a message: in double quotes, cut after 200 bytes, and always valid
/// UTF-8 without control characters (other bytes as \\xHH).
std::string ShownText(std::string_view text);

/// Parses decimal digits with an optional sign into two's complement in little-endian order, not
/// shortened. More than 4300 digits, Python's own default limit, are refused: the conversion is
/// quadratic.
std::optional<std::string> ParseDecimal(std::string_view text);

/// Parses repr() of a float: decimal or scientific notation, "inf", "nan", with an optional sign.
std::optional<double> ParsePickleFloat(std::string_view text);

/// Parses repr() of a Python 2 str: quoted, with backslash escapes. The result is bytes.
std::optional<std::string> ParseStringRepr(std::string_view text);

/// Returns the argument of UNICODE: Latin-1 with \uXXXX and \UXXXXXXXX. The result is UTF-8.
std::optional<std::string> ParseRawUnicodeEscape(std::string_view text);

/// Converts UTF-8 text of code points below 256 to one byte each.
std::optional<std::string> Latin1(std::string_view text);

}  // namespace varve
