/// The stores that a program has registered, by scheme.
#pragma once

#include <string>
#include <string_view>

#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Returns the scheme of a name "scheme://rest" (RFC 3986, section 3.1); empty for one without.
std::string_view SchemeOf(std::string_view name);

/// Returns the storage that is registered for the scheme of a name; null where there is none. Takes
/// no lock. It lives as long as the process.
Storage* RegisteredStorage(std::string_view name);

/// Checks a name of a registered store. Errors: InvalidArgument where nothing follows the scheme,
/// or where a component is empty, "." or "..".
Status CheckRegisteredName(std::string_view name);

}  // namespace varve
