/// Logins from a .netrc file. Pure. The format is that of inetutils' netrc(5).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace varve::http {

/// Returns the value of the header Authorization for a host ("Basic ..."); nothing where the file
/// has no "machine" of this name with a login or a password. "default" is not heard: it would tell
/// a password to every server. Macros are passed over.
std::optional<std::string> BasicAuthorization(std::string_view netrc, std::string_view host);

}  // namespace varve::http
