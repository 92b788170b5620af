/// Text for people: sizes, tables, colours, and names that cannot disturb a terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace varve::cli {

/// Returns "512 B", "1.5 GiB".
std::string FormatBytes(std::uint64_t bytes);

/// Returns "0.042 s", "12 min", "30 h".
std::string FormatSeconds(double seconds);

/// Returns "0.25 %" of 0.0025.
std::string FormatShare(double share);

/// Returns "3 tensors", "1 tensor".
std::string Count(std::uint64_t count, std::string_view noun);

std::string Hex(std::span<const std::uint8_t> bytes);

void AppendUtf8(char32_t code_point, std::string* out);

/// Returns text that cannot disturb a terminal. Names come from files that anyone may have written:
/// malformed UTF-8 becomes U+FFFD, and control characters, which could move the cursor or retitle
/// the window, become "\x1b", and those that reverse the direction of text "\u202e".
std::string Printable(std::string_view text);

enum class Colour : std::uint8_t { kNone, kGood, kBad, kOdd };

/// Returns `text` in `colour`: green, red or yellow; unchanged where `fd` takes none. Adds nothing
/// to the width on the screen.
std::string Painted(std::string_view text, Colour colour, int fd);

/// Columns, padded to their widest cell and two spaces apart. Cells are made Printable.
class Table {
 public:
  enum class Align : std::uint8_t { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// Adds a row of as many cells as there are columns. The last one gets the colour, on a terminal.
  void Add(const std::vector<std::string>& cells, Colour last = Colour::kNone);

  /// Titles and rows, each line ended by a newline.
  [[nodiscard]] std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<Colour> colours_;  // Of the rows' last cells.
};

}  // namespace varve::cli
