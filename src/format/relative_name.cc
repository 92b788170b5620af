#include "format/relative_name.h"

#include <algorithm>
#include <cstddef>

namespace varve {

bool IsRelativeName(std::string_view name) {
  constexpr std::size_t kMaxBytes = 1024;
  constexpr std::size_t kMaxPartBytes = 255;
  if (name.size() > kMaxBytes || std::any_of(name.begin(), name.end(), [](char c) {
        return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
      })) {
    return false;
  }
  while (true) {
    const std::size_t end = std::min(name.find('/'), name.size());
    const std::string_view part = name.substr(0, end);
    if (part.empty() || part == "." || part == ".." || part.size() > kMaxPartBytes) {
      return false;
    }
    if (end == name.size()) {
      return true;
    }
    name.remove_prefix(end + 1);
  }
}

}  // namespace varve
