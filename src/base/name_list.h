/// Names in a message.
#pragma once

#include <cstddef>
#include <string>

namespace varve {

/// Returns "a, b, c", and "and 7 more" behind the first `most`.
template <class Range>
std::string NameSome(const Range& names, std::size_t most = 10) {
  std::string text;
  std::size_t count = 0;
  for (const auto& name : names) {
    if (++count <= most) {
      text += (count == 1 ? "" : ", ") + std::string(name);
    }
  }
  return count <= most ? text : text + " and " + std::to_string(count - most) + " more";
}

}  // namespace varve
