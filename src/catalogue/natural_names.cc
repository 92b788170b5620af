// The order of names as people read them, and the step in a name.

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

#include "base/ascii.h"
#include "catalogue/names.h"
#include "varve/catalogue.h"

namespace varve {
namespace {
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::size_t EndOfDigits(std::string_view name, std::size_t at) {
  while (at < name.size() && IsDigit(name[at])) {
    ++at;
  }
  return at;
}

/// Returns true where the digits [begin, end) are a whole number: no part of a decimal number, a
/// version, a hash or a size ("1.5", "2x8", "a1b2", "7b"). `after_word`: letters may precede them.
bool IsWholeNumber(std::string_view name, std::size_t begin, std::size_t end, bool after_word) {
  const bool point_before = begin > 1 && name[begin - 1] == '.' && IsDigit(name[begin - 2]);
  const bool letter_before = begin > 0 && IsLetter(name[begin - 1]) && !after_word;
  const bool point_after = end + 1 < name.size() && name[end] == '.' && IsDigit(name[end + 1]);
  const bool letter_after = end < name.size() && IsLetter(name[end]);
  return !point_before && !letter_before && !point_after && !letter_after;
}

std::optional<std::uint64_t> NumberAt(std::string_view name, std::size_t begin, std::size_t end) {
  std::uint64_t number = 0;
  const auto parsed = std::from_chars(name.data() + begin, name.data() + end, number);
  return parsed.ec == std::errc() ? std::optional(number) : std::nullopt;
}

/// Returns the number after the last `word` in a name in small letters, with signs between or not.
std::optional<std::uint64_t> NumberAfter(std::string_view name, std::string_view word) {
  for (std::size_t at = name.rfind(word); at != std::string_view::npos;
       at = at == 0 ? std::string_view::npos : name.rfind(word, at - 1)) {
    std::size_t begin = at + word.size();
    begin = std::min(name.find_first_not_of("-_=: ", begin), name.size());
    const std::size_t end = EndOfDigits(name, begin);
    if (end > begin && IsWholeNumber(name, begin, end, /*after_word=*/true)) {
      return NumberAt(name, begin, end);
    }
  }
  return std::nullopt;
}

/// Returns true for eight digits that are a day: 20261122.
bool IsDate(std::string_view digits) {
  if (digits.size() != 8 || (!digits.starts_with("19") && !digits.starts_with("20"))) {
    return false;
  }
  const auto month = NumberAt(digits, 4, 6).value_or(0);
  const auto day = NumberAt(digits, 6, 8).value_or(0);
  return month >= 1 && month <= 12 && day >= 1 && day <= 31;
}

/// Returns the only number in a name; nothing where there are several, or a date.
std::optional<std::uint64_t> OnlyNumber(std::string_view name) {
  std::optional<std::uint64_t> only;
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = EndOfDigits(name, begin);
    if (end == begin) {
      ++begin;
      continue;
    }
    if (IsWholeNumber(name, begin, end, /*after_word=*/false)) {
      if (only || IsDate(name.substr(begin, end - begin))) {
        return std::nullopt;
      }
      only = NumberAt(name, begin, end);
    }
    begin = end;
  }
  return only;
}

}  // namespace

std::optional<std::uint64_t> StepFromName(std::string_view name) {
  std::string small(name);
  std::transform(small.begin(), small.end(), small.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  // "global_step" ends in "step".
  for (const std::string_view word : {"step", "checkpoint", "ckpt", "iter"}) {
    if (const auto step = NumberAfter(small, word)) {
      return step;
    }
  }
  return OnlyNumber(small);
}

std::string_view StepPrefix(std::string_view name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' || c == '=';
  };
  const auto* const digits = std::find_if_not(name.begin(), name.end(), is_letter);
  return name.substr(0, static_cast<std::size_t>(digits - name.begin()));
}

bool IsStepName(std::string_view name) {
  const std::string_view digits = name.substr(StepPrefix(name).size());
  return !digits.empty() && std::all_of(digits.begin(), digits.end(), IsDigit) &&
         StepFromName(name).has_value();
}

bool NaturalLess(std::string_view a, std::string_view b) {
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (!IsDigit(a[i]) || !IsDigit(b[j])) {
      if (a[i] != b[j]) {
        return static_cast<unsigned char>(a[i]) < static_cast<unsigned char>(b[j]);
      }
      ++i;
      ++j;
      continue;
    }
    const std::size_t a_end = EndOfDigits(a, i);
    const std::size_t b_end = EndOfDigits(b, j);
    // Without leading zeros the longer run of digits is the larger number.
    const std::size_t a_begin = std::min(a.find_first_not_of('0', i), a_end);
    const std::size_t b_begin = std::min(b.find_first_not_of('0', j), b_end);
    if (a_end - a_begin != b_end - b_begin) {
      return a_end - a_begin < b_end - b_begin;
    }
    const int order =
        a.substr(a_begin, a_end - a_begin).compare(b.substr(b_begin, b_end - b_begin));
    if (order != 0) {
      return order < 0;
    }
    i = a_end;
    j = b_end;
  }
  // One is a prefix of the other, or they differ in leading zeros only.
  const std::size_t a_left = a.size() - i;
  const std::size_t b_left = b.size() - j;
  return a_left != b_left ? a_left < b_left : a < b;
}

}  // namespace varve
