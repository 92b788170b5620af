#include "report_html.h"

#include <array>
#include <ctime>

#include "text.h"

namespace varve::cli {

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : Printable(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out.push_back(c);
    }
  }
  return out;
}

std::string FormatTime(double time) {
  constexpr double kYear10000 = 253'402'300'800;
  if (!(time > 0) || time >= kYear10000) {
    return "?";
  }
  const auto seconds = static_cast<std::time_t>(time);
  std::tm parts{};
  std::array<char, 32> text{};
  if (::gmtime_r(&seconds, &parts) == nullptr ||
      std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts) == 0) {
    return "?";
  }
  return text.data();
}

HtmlTable::HtmlTable(const std::vector<std::string>& titles) {
  for (const std::string& title : titles) {
    const char kind = title.front();
    const bool marked = kind == '#' || kind == '~';
    classes_.emplace_back(kind == '#' ? " class=\"number\"" : kind == '~' ? " class=\"text\"" : "");
    head_ += "<th" + classes_.back() + ">" + Escaped(marked ? title.substr(1) : title) + "</th>";
  }
}

void HtmlTable::Add(const std::vector<std::string>& cells) {
  rows_ += "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    rows_ += "<td" + classes_.at(i) + ">" + Escaped(cells[i]) + "</td>";
  }
  rows_ += "</tr>\n";
}

std::string HtmlTable::ToString() const {
  return "<div class=\"scroll\"><table><thead><tr>" + head_ + "</tr></thead><tbody>\n" + rows_ +
         "</tbody></table></div>\n";
}

std::string Section(std::string_view title, const std::string& body) {
  return "<section>\n<h2>" + Escaped(title) + "</h2>\n" + body + "</section>\n";
}
std::string Paragraph(std::string_view text) {
  return "<p class=\"faint\">" + Escaped(text) + "</p>\n";
}
std::string Figure(const std::string& id, std::string_view title, const std::string& style) {
  return "<figure><figcaption>" + Escaped(title) + "</figcaption><div class=\"chart\"" + style +
         "><canvas id=\"" + id + "\" role=\"img\" aria-label=\"" + Escaped(title) +
         "\"></canvas></div></figure>\n";
}

}  // namespace varve::cli
