/// Names in a message.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace varve {

/// Returns "a, b, c", and "and 7 more" behind the first ten.
template <class Range>
std::string NameSome(const Range& names) {
  constexpr std::size_t kMost = 10;
  std::string text;
  std::size_t count = 0;
  for (const auto& name : names) {
    if (++count <= kMost) {
      text += (count == 1 ? "" : ", ") + std::string(name);
    }
  }
  return count <= kMost ? text : text + " and " + std::to_string(count - kMost) + " more";
}

/// Returns ranks 0 to 3 and 7 as "ranks 0-3, 7", and "and 7 more" behind 32 such parts.
inline std::string NameRanks(const std::vector<int>& ranks) {
  std::size_t most = 32;
  std::string text = ranks.size() > 1 ? "ranks " : "rank ";
  for (std::size_t i = 0; i < ranks.size();) {
    if (most-- == 0) {
      return text + " and " + std::to_string(ranks.size() - i) + " more";
    }
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) {
      ++end;
    }
    text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
    if (end - i > 1) {
      text += "-" + std::to_string(ranks[end - 1]);
    }
    i = end;
  }
  return text;
}

}  // namespace varve
