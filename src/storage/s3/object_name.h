/// Names of objects as users write them, "s3://bucket/key", and as they are written into requests.
/// Pure.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "varve/status.h"

namespace varve::s3 {

/// The schemes of servers that speak S3's protocol. Each has settings of its own: see
/// EnvironmentOf in keys/profile.h.
inline constexpr std::array<std::string_view, 3> kSchemes = {"s3", "r2", "weka"};

/// Returns the scheme of kSchemes that a name begins with, followed by "://"; empty where none
/// does.
std::string_view SchemeOfObject(std::string_view name);

/// An object, or what stands for a directory: all objects whose keys begin with `key` and '/'.
struct ObjectName {
  std::string bucket;
  std::string key;  ///< Without leading and trailing '/'. Empty for the bucket itself.
  std::string_view scheme = kSchemes.front();  ///< One of kSchemes.
};

/// Returns "s3://bucket/key".
std::string PathOf(const ObjectName& object);

/// Errors: InvalidArgument where `name` has none of kSchemes or no bucket, or one that no server
/// can have (RFC 3986 host characters, at most 255); for a key of more than 1024 bytes.
Result<ObjectName> ParseObjectName(std::string_view name);

/// Writes each byte but letters, digits and "-._~" as %XX, as a signature needs it; '/' stays with
/// `keep_slashes`.
std::string UriEncode(std::string_view text, bool keep_slashes);

}  // namespace varve::s3
