/// ASCII characters, without a locale.
#pragma once

#include <algorithm>
#include <string_view>

namespace varve {

constexpr bool IsDigit(char c) { return c >= '0' && c <= '9'; }

constexpr char InSmallLetters(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

/// Takes `expected` off the front of `*text`; false where the text begins otherwise.
constexpr bool TakeText(std::string_view* text, std::string_view expected) {
  if (!text->starts_with(expected)) {
    return false;
  }
  text->remove_prefix(expected.size());
  return true;
}

/// Returns true where two texts are equal but for the case of their letters.
constexpr bool EqualIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return InSmallLetters(x) == InSmallLetters(y); });
}

}  // namespace varve
