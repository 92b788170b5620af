#include "format/json_writer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <iterator>

namespace varve {
namespace {

/// Returns the bytes of the character that `text` begins with, 0 where none is well-formed: table
/// 3-7 of the Unicode standard. `text` is not empty. simdjson's check uses objects that are
/// destroyed when the process exits (base/json_parser.h).
std::size_t CharacterBytes(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) {
    return 1;
  }
  if (lead < 0xC2 || lead > 0xF4) {
    return 0;
  }
  const std::size_t bytes = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte rules out overlong forms, surrogates, and all above U+10FFFF.
  const unsigned lowest = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned highest = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (text.size() < bytes) {
    return 0;
  }
  const auto second = static_cast<unsigned char>(text[1]);
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80; };
  const std::string_view rest = text.substr(2, bytes - 2);
  const bool formed =
      second >= lowest && second <= highest && std::all_of(rest.begin(), rest.end(), continues);
  return formed ? bytes : 0;
}

}  // namespace

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

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = CharacterBytes(text);
    if (bytes == 0) {
      return false;
    }
    text.remove_prefix(bytes);
  }
  return true;
}

}  // namespace varve
