/// Names of objects as users write them, "s3://bucket/key", and as they are written into requests.
/// Pure.
#pragma once

#include <string>
#include <string_view>

#include "varve/status.h"

namespace varve::s3 {

inline constexpr std::string_view kScheme = "s3://";

/// An object, or what stands for a directory: all objects whose keys begin with `key` and '/'.
struct ObjectName {
  std::string bucket;
  std::string key;  ///< Without leading and trailing '/'. Empty for the bucket itself.
};

/// Returns "s3://bucket/key".
std::string PathOf(const ObjectName& object);

/// Returns text of a server's for a message: at most 500 bytes, control characters as blanks.
std::string Printable(std::string_view text);

/// Errors: InvalidArgument where `name` has no bucket, or one that no server can have (RFC 3986
/// host characters, at most 255); for a key of more than 1024 bytes.
Result<ObjectName> ParseObjectName(std::string_view name);

/// Writes each byte but letters, digits and "-._~" as %XX, as a signature needs it; '/' stays with
/// `keep_slashes`.
std::string UriEncode(std::string_view text, bool keep_slashes);

}  // namespace varve::s3
