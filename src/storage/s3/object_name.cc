#include "storage/s3/object_name.h"

#include <algorithm>
#include <cstddef>

namespace varve::s3 {
namespace {

constexpr std::size_t kMaxBucket = 255;
constexpr std::size_t kMaxKey = 1024;

bool IsLetterOrDigit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/// Returns true for a name that can stand in a host name or a path as it is. Some servers take
/// upper-case letters and underscores, AWS does not.
bool CanBeBucket(std::string_view name) {
  return !name.empty() && name.size() <= kMaxBucket && IsLetterOrDigit(name.front()) &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return IsLetterOrDigit(c) || c == '-' || c == '.' || c == '_'; });
}

}  // namespace

std::string_view SchemeOfObject(std::string_view name) {
  const auto found = std::find_if(kSchemes.begin(), kSchemes.end(), [&](std::string_view scheme) {
    return name.starts_with(scheme) && name.substr(scheme.size()).starts_with("://");
  });
  return found == kSchemes.end() ? std::string_view() : *found;
}

std::string PathOf(const ObjectName& object) {
  return std::string(object.scheme) + "://" + object.bucket +
         (object.key.empty() ? "" : "/" + object.key);
}

Result<ObjectName> ParseObjectName(std::string_view name) {
  const std::string quoted = "\"" + std::string(name) + "\"";
  const std::string_view scheme = SchemeOfObject(name);
  if (scheme.empty()) {
    return InvalidArgument(quoted + " is not s3://bucket/key");
  }
  std::string_view rest = name.substr(scheme.size() + 3);
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  ObjectName object{std::string(rest.substr(0, slash)), {}, scheme};
  if (!CanBeBucket(object.bucket)) {
    return InvalidArgument(quoted +
                           " names no bucket: want s3://bucket/key, where a bucket's name " +
                           "is letters, digits, '-', '.' and '_'");
  }
  rest.remove_prefix(slash);
  while (rest.starts_with('/')) {
    rest.remove_prefix(1);
  }
  while (rest.ends_with('/')) {
    rest.remove_suffix(1);
  }
  if (rest.size() > kMaxKey) {
    return InvalidArgument(quoted + ": a key has at most 1024 bytes, this has " +
                           std::to_string(rest.size()));
  }
  object.key = std::string(rest);
  return object;
}

std::string UriEncode(std::string_view text, bool keep_slashes) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (IsLetterOrDigit(c) || c == '-' || c == '.' || c == '_' || c == '~' ||
        (c == '/' && keep_slashes)) {
      out += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    out += '%';
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

}  // namespace varve::s3
