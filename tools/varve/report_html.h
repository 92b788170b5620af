/// Pieces of a page of HTML. All texts are escaped: names and messages come from files that anyone
/// may have written, and none of them can become markup or script.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace varve::cli {

/// Returns text as HTML shows it: Printable, and with the characters of markup replaced.
std::string Escaped(std::string_view text);

/// Returns "2026-11-23 10:04:11 UTC" of Unix time; "?" of a time that no calendar has.
std::string FormatTime(double time);

/// A table, which scrolls by itself where it is wider than the page.
class HtmlTable {
 public:
  /// A title that begins with '#' is that of a column of numbers, with '~' of one of long texts.
  explicit HtmlTable(const std::vector<std::string>& titles);

  /// Adds a row of as many cells as there are titles.
  void Add(const std::vector<std::string>& cells);

  [[nodiscard]] std::string ToString() const;

 private:
  std::vector<std::string> classes_;
  std::string head_;
  std::string rows_;
};

/// Returns a section; `body` is HTML.
std::string Section(std::string_view title, const std::string& body);

std::string Paragraph(std::string_view text);

/// Returns a canvas for a chart, with its caption. `style` is an attribute, or empty.
std::string Figure(const std::string& id, std::string_view title, const std::string& style = "");

}  // namespace varve::cli
