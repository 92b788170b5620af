/// JSON output, by nlohmann's library. Members stay in the order in which they are given.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace varve::cli {

using Json = nlohmann::ordered_json;

/// Returns the document on one line, newline included. It is valid whatever bytes the names hold:
/// malformed UTF-8 becomes U+FFFD.
std::string ToLine(const Json& json);

/// Returns seconds, rounded to the microsecond.
Json Seconds(double seconds);

/// Returns null unless `known`.
template <class T>
Json If(bool known, const T& value) {
  return known ? Json(value) : Json();
}

}  // namespace varve::cli
