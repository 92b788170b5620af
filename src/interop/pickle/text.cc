#include "interop/pickle/text.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace varve {
namespace {

constexpr std::size_t kMaxDigits = 4300;
constexpr std::uint64_t kHighBits = 0x8080808080808080;

std::uint8_t ByteAt(std::string_view text, std::size_t i) {
  return static_cast<std::uint8_t>(text[i]);
}

/// Returns the bytes of the sequence that starts at `i`, 0 if it is none. Not for ASCII.
std::size_t SequenceBytes(std::string_view text, std::size_t i) {
  const std::uint8_t lead = ByteAt(text, i);
  const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() - i < bytes) {
    return 0;
  }
  for (std::size_t k = 1; k < bytes; ++k) {
    if ((ByteAt(text, i + k) & 0xC0) != 0x80) {
      return 0;
    }
  }
  const std::uint8_t second = ByteAt(text, i + 1);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool too_large = lead == 0xF4 && second > 0x8F;
  return overlong || too_large ? 0 : bytes;
}

void AppendUtf8(std::uint32_t code, std::string* out) {
  const auto put = [out](std::uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

/// Reads `count` digits of `base` at the front of *text and drops them.
std::optional<std::uint32_t> TakeDigits(std::size_t count, int base, std::string_view* text) {
  std::uint32_t value = 0;
  if (text->size() < count) {
    return std::nullopt;
  }
  const char* const begin = text->data();
  const char* const end = begin + count;
  const auto parsed = std::from_chars(begin, end, value, base);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    return std::nullopt;
  }
  text->remove_prefix(count);
  return value;
}

/// Takes the escape behind a backslash, at the front of *rest. Unknown ones stay as they are.
bool TakeStringEscape(std::string_view* rest, std::string* out) {
  constexpr std::string_view kNames = "\\'\"abfnrtv";
  constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
  if (rest->empty()) {
    return false;
  }
  const char name = rest->front();
  if (name >= '0' && name <= '7') {
    const std::size_t digits = std::min(rest->find_first_not_of("01234567"), rest->size());
    const auto value = TakeDigits(std::min<std::size_t>(digits, 3), 8, rest);
    out->push_back(static_cast<char>(*value));
    return true;
  }
  rest->remove_prefix(1);
  if (name == 'x') {
    const auto value = TakeDigits(2, 16, rest);
    out->push_back(static_cast<char>(value.value_or(0)));
    return value.has_value();
  }
  if (const std::size_t at = kNames.find(name); at != std::string_view::npos) {
    out->push_back(kMeanings[at]);
  } else {
    out->push_back('\\');
    out->push_back(name);
  }
  return true;
}

}  // namespace

bool IsPickleUtf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    std::uint64_t eight = 0;
    if (text.size() - i >= sizeof(eight)) {
      std::memcpy(&eight, text.data() + i, sizeof(eight));
      if ((eight & kHighBits) == 0) {
        i += sizeof(eight);
        continue;
      }
    }
    const std::size_t bytes = ByteAt(text, i) < 0x80 ? 1 : SequenceBytes(text, i);
    if (bytes == 0) {
      return false;
    }
    i += bytes;
  }
  return true;
}

std::string ShownText(std::string_view text) {
  constexpr std::size_t kMaxShown = 200;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out = "\"";
  std::size_t i = 0;
  while (i < std::min(text.size(), kMaxShown)) {
    const std::uint8_t byte = ByteAt(text, i);
    const std::size_t bytes = byte < 0x80 ? 1 : SequenceBytes(text, i);
    const bool is_surrogate = byte == 0xED && bytes == 3 && ByteAt(text, i + 1) >= 0xA0;
    if (bytes == 0 || is_surrogate || byte < ' ' || byte == 0x7F) {
      out.append("\\x").append(1, kDigits[byte >> 4]).append(1, kDigits[byte & 15]);
      ++i;
    } else {
      out.append(text.substr(i, bytes));
      i += bytes;
    }
  }
  return out + (i < text.size() ? "\"..." : "\"");
}

std::optional<std::string> ParseDecimal(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) {
    text.remove_prefix(1);
  }
  if (text.empty() || text.size() > kMaxDigits) {
    return std::nullopt;
  }
  // Nine digits at a time: words = words * 10^9 + digits.
  std::vector<std::uint32_t> words(1, 0);
  while (!text.empty()) {
    const std::size_t count = text.size() % 9 == 0 ? 9 : text.size() % 9;
    const auto digits = TakeDigits(count, 10, &text);
    if (!digits) {
      return std::nullopt;
    }
    std::uint64_t carry = *digits;
    for (std::uint32_t& word : words) {
      carry += std::uint64_t{word} * 1'000'000'000;
      word = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
    if (carry != 0) {
      words.push_back(static_cast<std::uint32_t>(carry));
    }
  }
  words.push_back(0);  // Room for the sign.
  std::string bytes;
  std::uint64_t carry = negative ? 1 : 0;
  for (std::uint32_t word : words) {
    carry += negative ? ~word : word;
    for (unsigned shift = 0; shift < 32; shift += 8) {
      bytes.push_back(static_cast<char>(carry >> shift));
    }
    carry >>= 32;
  }
  return bytes;
}

std::optional<double> ParsePickleFloat(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) {
    text.remove_prefix(1);
  }
  double value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::optional<std::string> ParseStringRepr(std::string_view text) {
  if (text.size() < 2 || text.front() != text.back() ||
      (text.front() != '\'' && text.front() != '"')) {
    return std::nullopt;
  }
  std::string_view rest = text.substr(1, text.size() - 2);
  std::string out;
  while (!rest.empty()) {
    const char next = rest.front();
    rest.remove_prefix(1);
    if (next != '\\') {
      out.push_back(next);
    } else if (!TakeStringEscape(&rest, &out)) {
      return std::nullopt;
    }
  }
  return out;
}

std::optional<std::string> ParseRawUnicodeEscape(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::uint8_t next = ByteAt(text, 0);
    text.remove_prefix(1);
    AppendUtf8(next, &out);
    if (next != '\\' || text.empty()) {
      continue;
    }
    const char kind = text.front();
    text.remove_prefix(1);
    if (kind != 'u' && kind != 'U') {
      AppendUtf8(static_cast<std::uint8_t>(kind), &out);
      continue;
    }
    out.pop_back();  // The backslash belongs to the escape.
    const auto code = TakeDigits(kind == 'u' ? 4 : 8, 16, &text);
    if (!code || *code > 0x10FFFF) {
      return std::nullopt;
    }
    AppendUtf8(*code, &out);
  }
  return out;
}

std::optional<std::string> Latin1(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      bytes += text[i];
    } else if ((lead & 0xFE) == 0xC2 && i + 1 < text.size()) {
      bytes += static_cast<char>((lead & 0x03) << 6 | (text[++i] & 0x3F));
    } else {
      return std::nullopt;
    }
  }
  return bytes;
}

}  // namespace varve
