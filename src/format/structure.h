/// The structure: the containers of a state, with leaves that name the kind of entry at each path.
#pragma once

#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "varve/status.h"
#include "varve/value.h"

namespace varve {

/// Returns whether the items of such a value are keys and values by turns.
constexpr bool IsMapping(ValueKind kind) {
  return kind == ValueKind::kDict || kind == ValueKind::kOrderedDict ||
         kind == ValueKind::kCounter || kind == ValueKind::kDefaultDict ||
         kind == ValueKind::kNamedDict || kind == ValueKind::kWrapped;
}

/// Returns the union of the ranks' structures, in rank order: keys in the order they are first
/// seen, list positions by index. Errors: InvalidArgument naming the path and the two ranks where
/// one rank has a container and another a leaf, containers of different kinds, or a wrapped tensor
/// of another class or with other attributes.
Result<Value> MergeStructures(const std::vector<Value>& by_rank);

/// Returns the same of encoded structures, encoded; no bytes for none. Where all that are not empty
/// are equal, as in an SPMD job, they stay as they are. Errors: DecodeValue's, too.
Result<Bytes> MergeEncodedStructures(const std::vector<std::string_view>& by_rank);

/// Checks that DecodeValue takes `data`, without making the value. Errors: as DecodeValue.
Status CheckEncodedValue(std::string_view data);

}  // namespace varve
