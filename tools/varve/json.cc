#include "json.h"

#include <array>
#include <cstdio>

#include "text.h"

namespace varve::cli {

JsonWriter& JsonWriter::Open(char bracket) {
  Separate();
  out_ += bracket;
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::Close(char bracket) {
  out_ += bracket;
  needs_comma_ = true;
  return *this;
}

void JsonWriter::Separate() {
  if (needs_comma_) {
    out_ += ",";
  }
  needs_comma_ = true;
}

void JsonWriter::AppendString(std::string_view text) {
  out_ += '"';
  while (!text.empty()) {
    const char32_t c = TakeCodePoint(&text);
    if (c == '"' || c == '\\') {
      out_ += '\\';
      out_ += static_cast<char>(c);
    } else if (c < 0x20 || c == 0x7F) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(c));
      out_ += escape.data();
    } else {
      AppendUtf8(c, &out_);
    }
  }
  out_ += '"';
}

JsonWriter& JsonWriter::Key(std::string_view key) {
  Separate();
  AppendString(key);
  out_ += ":";
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::String(std::string_view text) {
  Separate();
  AppendString(text);
  return *this;
}

JsonWriter& JsonWriter::Strings(const std::vector<std::string>& texts) {
  BeginArray();
  for (const std::string& text : texts) {
    String(text);
  }
  return EndArray();
}

JsonWriter& JsonWriter::Number(std::uint64_t number) {
  Separate();
  out_ += std::to_string(number);
  return *this;
}

JsonWriter& JsonWriter::Numbers(const std::vector<std::uint64_t>& numbers) {
  BeginArray();
  for (const std::uint64_t number : numbers) {
    Number(number);
  }
  return EndArray();
}

JsonWriter& JsonWriter::Seconds(double seconds) {
  Separate();
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.6f", seconds);
  out_ += text.data();
  return *this;
}

JsonWriter& JsonWriter::Bool(bool value) {
  Separate();
  out_ += value ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::Null() {
  Separate();
  out_ += "null";
  return *this;
}

std::string JsonWriter::Take() {
  out_ += "\n";
  return std::move(out_);
}

}  // namespace varve::cli
