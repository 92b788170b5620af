/// Members of JSON objects of an untrusted index, with the checks that every such index needs.
/// Private to interop.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include <simdjson.h>

#include "varve/status.h"
#include "varve/tensor.h"

namespace varve {

/// The members of an object by name, each once. They view the parsed document.
using JsonMembers = std::vector<std::pair<std::string_view, simdjson::dom::element>>;

/// Sets `*out` to the members of an object. `what` names it, for messages. Errors: DataLoss for
/// anything but an object, and for a name that comes twice: JSON leaves open which one counts.
Status ReadJsonMembers(simdjson::dom::element element, std::string_view what, JsonMembers* out);

/// Returns the member of a name, or null. O(log n).
const simdjson::dom::element* FindJsonMember(const JsonMembers& members, std::string_view name);

/// Appends the numbers of a list to `*out`. Errors: DataLoss for anything but a list of numbers
/// from 0 to 2^64-1.
Status ReadJsonDims(simdjson::dom::element element, std::string_view what, Dims* out);

}  // namespace varve
