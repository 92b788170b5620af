#include "text.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdio>
#include <cstdlib>

#include <unistd.h>

namespace varve::cli {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

bool IsControl(char32_t c) { return c < 0x20 || (c >= 0x7F && c < 0xA0); }

/// Returns true for characters that reverse the direction of the text after them, or begin a line:
/// they could make a name look like another one.
bool IsDeceptive(char32_t c) {
  return c == 0x200E || c == 0x200F || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

std::string HexByte(std::uint8_t byte) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  return {kDigits[byte >> 4], kDigits[byte & 15]};
}

/// Returns the number of code points: wide and combining characters are rare in names of tensors.
std::size_t Width(std::string_view printable) {
  return static_cast<std::size_t>(std::count_if(printable.begin(), printable.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

const char* CodeOf(Colour colour) {
  switch (colour) {
    case Colour::kGood: return "\x1b[32m";
    case Colour::kBad: return "\x1b[31m";
    case Colour::kOdd: return "\x1b[33m";
    case Colour::kNone: break;
  }
  return nullptr;
}

/// Returns the first code point of `*rest`, which must not be empty, and moves past it. A byte that
/// does not begin a well-formed UTF-8 sequence (Unicode 15, table 3-7) gives U+FFFD and is skipped.
char32_t TakeCodePoint(std::string_view* rest) {
  assert(!rest->empty());
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>((*rest)[i]); };
  const unsigned char first = at(0);
  const std::size_t length = first < 0x80                    ? 1
                             : first >= 0xC2 && first < 0xE0 ? 2
                             : first >= 0xE0 && first < 0xF0 ? 3
                             : first >= 0xF0 && first < 0xF5 ? 4
                                                             : 0;
  char32_t code_point = length <= 1 ? first : first & (0x7FU >> length);
  bool good = length != 0 && length <= rest->size();
  for (std::size_t i = 1; good && i < length; ++i) {
    good = (at(i) & 0xC0U) == 0x80U;
    code_point = (code_point << 6) | (at(i) & 0x3FU);
  }
  constexpr std::array<char32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code_point >= 0xD800 && code_point < 0xE000;
  if (!good || surrogate || code_point < kSmallest.at(length) || code_point > 0x10FFFF) {
    rest->remove_prefix(1);
    return kReplacement;
  }
  rest->remove_prefix(length);
  return code_point;
}

/// Returns true when what goes to `fd` (standard output or error) may be coloured: it is a terminal
/// that knows colours, and NO_COLOR is unset or empty (no-color.org).
bool MayColour(int fd) {
  const char* const refused = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  const bool dumb = terminal == nullptr || *terminal == 0 || std::string_view(terminal) == "dumb";
  return (refused == nullptr || *refused == 0) && !dumb && ::isatty(fd) == 1;
}

}  // namespace

std::string FormatBytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) {
    return std::to_string(bytes) + " B";
  }
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  // 1023.95 would be printed as 1024.0.
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %s", value, kUnits[unit]);
  return text.data();
}

std::string FormatSeconds(double seconds) {
  constexpr double kMinute = 60;
  constexpr double kHour = 3600;
  std::array<char, 32> text{};
  const auto [unit, name] = seconds < 2 * kMinute ? std::pair{1.0, "s"}
                            : seconds < 2 * kHour ? std::pair{kMinute, "min"}
                                                  : std::pair{kHour, "h"};
  const double value = seconds / unit;
  const int decimals = value < 1 ? 3 : (value < 10 ? 1 : 0);
  std::snprintf(text.data(), text.size(), "%.*f %s", decimals, value, name);
  return text.data();
}

std::string FormatShare(double share) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f %%", share * 100);
  return text.data();
}

std::string Count(std::uint64_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

std::string Hex(std::span<const std::uint8_t> bytes) {
  std::string hex;
  for (const std::uint8_t byte : bytes) {
    hex += HexByte(byte);
  }
  return hex;
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const auto put = [&](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
    return;
  }
  if (code_point < 0x800) {
    put(0xC0U | (code_point >> 6));
  } else {
    if (code_point < 0x10000) {
      put(0xE0U | (code_point >> 12));
    } else {
      put(0xF0U | (code_point >> 18));
      put(0x80U | ((code_point >> 12) & 0x3FU));
    }
    put(0x80U | ((code_point >> 6) & 0x3FU));
  }
  put(0x80U | (code_point & 0x3FU));
}

std::string Printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const char32_t c = TakeCodePoint(&text);
    if (IsControl(c)) {
      out += "\\x" + HexByte(static_cast<std::uint8_t>(c));
    } else if (IsDeceptive(c)) {
      out += "\\u" + HexByte(static_cast<std::uint8_t>(c >> 8)) +
             HexByte(static_cast<std::uint8_t>(c));
    } else {
      AppendUtf8(c, &out);
    }
  }
  return out;
}

std::string Painted(std::string_view text, Colour colour, int fd) {
  const char* const code = CodeOf(colour);
  if (code == nullptr || text.empty() || !MayColour(fd)) {
    return std::string(text);
  }
  return code + std::string(text) + "\x1b[0m";
}

void Table::Add(const std::vector<std::string>& cells, Colour last) {
  assert(cells.size() == columns_.size());
  std::vector<std::string> row;
  row.reserve(cells.size());
  for (const std::string& cell : cells) {
    row.push_back(Printable(cell));
  }
  rows_.push_back(std::move(row));
  colours_.push_back(last);
}

std::string Table::ToString() const {
  std::vector<std::string> titles;
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) {
    titles.push_back(column.title);
    widths.push_back(Width(column.title));
  }
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], Width(row[i]));
    }
  }
  std::string out;
  const auto append = [&](const std::vector<std::string>& row, Colour last) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - Width(row[i]), ' ');
      const bool is_last = i + 1 == row.size();
      const std::string cell = is_last ? Painted(row[i], last, STDOUT_FILENO) : row[i];
      line += i == 0 ? "" : "  ";
      line += columns_[i].align == Align::kRight ? padding + cell : is_last ? cell : cell + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  };
  append(titles, Colour::kNone);
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    append(rows_[i], colours_[i]);
  }
  return out;
}

}  // namespace varve::cli
