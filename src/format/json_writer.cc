#include "format/json_writer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <iterator>

#include <simdjson.h>

namespace varve {

void AppendJsonString(std::string_view text, std::string* out) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const auto is_escaped = [](char c) {
    return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20;
  };
  out->push_back('"');
  for (auto at = text.begin(); at != text.end();) {
    const auto escaped = std::find_if(at, text.end(), is_escaped);
    out->append(at, escaped);
    if (escaped == text.end()) {
      break;
    }
    const auto byte = static_cast<unsigned char>(*escaped);
    if (byte < 0x20) {
      out->append("\\u00");
      out->push_back(kDigits[byte >> 4]);
      out->push_back(kDigits[byte & 15]);
    } else {
      out->push_back('\\');
      out->push_back(*escaped);
    }
    at = std::next(escaped);
  }
  out->push_back('"');
}

void AppendJsonNumber(std::uint64_t number, std::string* out) {
  std::array<char, 20> digits{};  // Of 2^64 - 1.
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  out->append(digits.data(), end);
}

void AppendJsonDims(const Dims& dims, std::string* out) {
  out->push_back('[');
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (d != 0) {
      out->push_back(',');
    }
    AppendJsonNumber(dims[d], out);
  }
  out->push_back(']');
}

bool IsUtf8(std::string_view text) { return simdjson::validate_utf8(text.data(), text.size()); }

}  // namespace varve
