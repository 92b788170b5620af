/// Names of files on web servers, "https://host/path", and what is asked of a server for them.
/// Pure.
///
/// A name is a URL without a query: its %XX stand for one byte each. Files that an index names are
/// joined to it with '/'; bytes that no URL may hold are encoded.
#pragma once

#include <string>
#include <string_view>

#include "varve/status.h"

namespace varve::http {

/// Returns "http" or "https" where a name begins with it, followed by "://"; else empty.
std::string_view SchemeOfUrl(std::string_view name);

/// Returns the name without slashes at its end. Errors: InvalidArgument for a name without a host;
/// with a user or a password, a query or a fragment, none of which the message shows.
Result<std::string> CheckUrl(std::string_view name);

/// Returns what is sent for a name that CheckUrl takes, or one of a file below it.
std::string RequestUrl(std::string_view name);

/// Where a request goes: the parts of a URL that decide who gets credentials.
struct Origin {
  std::string scheme;  ///< "http" or "https".
  std::string host;    ///< Without port, in lower case.
  std::string port;    ///< As a number, the scheme's own where the URL has none.
  bool operator==(const Origin&) const = default;
};

/// Errors: InvalidArgument where `url` is none of http or https.
Result<Origin> OriginOf(const std::string& url);

/// Returns true for this host itself: "localhost", "[::1]", "127.x.y.z". "127.example.com" and
/// "localhost.example.com" are other hosts.
bool IsLoopback(std::string_view host);

/// Returns the URL that a header Location means behind `url`. Errors: Unimplemented for what
/// is no URL, for another scheme than http and https, for one with a user or password, and for http
/// behind https.
Result<std::string> Redirected(const std::string& url, const std::string& location);

}  // namespace varve::http
