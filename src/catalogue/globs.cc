// Globs are grouped by their literal beginning. A name is then compared with those of its own
// beginnings only, so many globs cost hardly more than one.

#include <algorithm>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>

#include "varve/catalogue.h"

namespace varve {
namespace {

using Range = std::pair<char32_t, char32_t>;  ///< First and last.

/// One element of a glob.
struct Part {
  enum class Kind : std::uint8_t { kRun, kAny, kOneOf, kNotOneOf };
  Kind kind = Kind::kRun;
  std::vector<Range> set{};

  [[nodiscard]] bool Matches(char32_t c) const {
    const bool in_set = std::any_of(set.begin(), set.end(), [&](const Range& range) {
      return range.first <= c && c <= range.second;
    });
    return kind == Kind::kAny || in_set == (kind == Kind::kOneOf);
  }
};

/// Returns the character at `*at` and moves there to the next. A byte that is not part of UTF-8 is
/// a character of its own, beyond all those of Unicode.
char32_t Take(std::string_view text, std::size_t* at) {
  constexpr char32_t kNotUtf8 = 0x110000;
  const auto lead = static_cast<unsigned char>(text[*at]);
  ++*at;
  if (lead < 0x80) {
    return lead;
  }
  const std::size_t more = lead < 0xC2   ? 0
                           : lead < 0xE0 ? 1
                           : lead < 0xF0 ? 2
                           : lead < 0xF5 ? 3
                                         : 0;
  char32_t value = lead & (0x3FU >> more);
  bool whole = more != 0 && more <= text.size() - *at;
  for (std::size_t i = 0; whole && i < more; ++i) {
    const auto byte = static_cast<unsigned char>(text[*at + i]);
    whole = (byte & 0xC0U) == 0x80;
    value = value << 6U | (byte & 0x3FU);
  }
  *at += whole ? more : 0;
  return whole ? value : kNotUtf8 + lead;
}

std::u32string Characters(std::string_view text) {
  std::u32string characters;
  for (std::size_t at = 0; at < text.size();) {
    characters.push_back(Take(text, &at));
  }
  return characters;
}

/// Returns the set between the brackets [begin, end).
std::vector<Range> ParseSet(std::u32string_view text) {
  std::vector<Range> set;
  for (std::size_t i = 0; i < text.size();) {
    const bool range = i + 2 < text.size() && text[i + 1] == U'-';
    set.emplace_back(text[i], text[range ? i + 2 : i]);
    i += range ? 3 : 1;
  }
  return set;
}

std::vector<Part> Parse(std::u32string_view glob) {
  using Kind = Part::Kind;
  std::vector<Part> parts;
  for (std::size_t i = 0; i < glob.size(); ++i) {
    const char32_t c = glob[i];
    if (c == U'*') {
      if (parts.empty() || parts.back().kind != Kind::kRun) {
        parts.push_back({Kind::kRun});
      }
      continue;
    }
    if (c == U'?') {
      parts.push_back({Kind::kAny});
      continue;
    }
    const bool negated = c == U'[' && i + 1 < glob.size() && glob[i + 1] == U'!';
    const std::size_t first = i + (negated ? 2 : 1);
    // A ']' that stands first is a member of the set.
    const std::size_t last = c == U'[' ? glob.find(U']', first + 1) : std::u32string_view::npos;
    if (last == std::u32string_view::npos) {
      parts.push_back({Kind::kOneOf, {{c, c}}});  // Itself; also a '[' that nothing closes.
      continue;
    }
    parts.push_back(
        {negated ? Kind::kNotOneOf : Kind::kOneOf, ParseSet(glob.substr(first, last - first))});
    i = last;
  }
  return parts;
}

/// The part of a glob that follows its literal beginning.
struct Rest {
  std::vector<Part> parts;
  std::string end;  ///< The literal end, which rules out most names at once.

  explicit Rest(std::string_view glob)
      : parts(Parse(Characters(glob))), end(glob.substr(glob.find_last_of("*?[]") + 1)) {}

  /// Returns true when the name matches. At a mismatch the last run takes one character more: a
  /// shorter one has failed, and an earlier run could not do better.
  [[nodiscard]] bool Matches(std::string_view name) const {
    if (!name.ends_with(end)) {
      return false;
    }
    constexpr std::size_t kNone = SIZE_MAX;
    std::size_t part = 0;
    std::size_t at = 0;
    std::size_t run = kNone;
    std::size_t run_end = 0;
    while (at < name.size()) {
      std::size_t next = at;
      if (part < parts.size() && parts[part].kind == Part::Kind::kRun) {
        run = part++;
        run_end = at;
      } else if (part < parts.size() && parts[part].Matches(Take(name, &next))) {
        ++part;
        at = next;
      } else if (run != kNone) {
        part = run + 1;
        Take(name, &run_end);
        at = run_end;
      } else {
        return false;
      }
    }
    return part == parts.size() ||
           (part + 1 == parts.size() && parts[part].kind == Part::Kind::kRun);
  }
};

struct Hash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};

}  // namespace

struct Globs::Impl {
  /// By the literal beginning. Nothing follows it in a plain name.
  std::unordered_map<std::string, std::vector<Rest>, Hash, std::equal_to<>> by_beginning;
  std::set<std::size_t> lengths;  ///< Of the beginnings, in bytes.
};

Globs::Globs(const std::vector<std::string>& globs) {
  auto impl = std::make_shared<Impl>();
  for (const std::string& glob : globs) {
    const std::string beginning = glob.substr(0, glob.find_first_of("*?["));
    impl->by_beginning[beginning].emplace_back(std::string_view(glob).substr(beginning.size()));
    impl->lengths.insert(beginning.size());
  }
  impl_ = std::move(impl);
}

bool Globs::empty() const { return impl_->by_beginning.empty(); }

bool Globs::Match(std::string_view name) const {
  for (const std::size_t length : impl_->lengths) {
    if (length > name.size()) {
      return false;
    }
    const auto found = impl_->by_beginning.find(name.substr(0, length));
    if (found == impl_->by_beginning.end()) {
      continue;
    }
    if (std::any_of(found->second.begin(), found->second.end(),
                    [&](const Rest& rest) { return rest.Matches(name.substr(length)); })) {
      return true;
    }
  }
  return false;
}

}  // namespace varve
