/// The typed JSON of tests/golden/dcp (README.md there) against Values.
#pragma once

#include <string>

#include <simdjson.h>

#include "varve/value.h"

namespace varve::test {

/// Returns what differs between a value and its description, or "" when nothing does. Values that
/// stay opaque differ from every description.
std::string DifferenceFrom(simdjson::dom::element expected, const Value& value);

/// Returns a string member of a JSON object; "" where there is none.
std::string StringAt(simdjson::dom::element object, std::string_view key);

}  // namespace varve::test
