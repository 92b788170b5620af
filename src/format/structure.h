/// The structure: the containers of a state, with leaves that name the kind of entry at each path.
#pragma once

#include <vector>

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
/// seen, list positions by index. Errors: InvalidArgument naming the path where one rank has a
/// container and another a leaf, containers of different kinds, or a wrapped tensor of another
/// class or with other attributes.
Result<Value> MergeStructures(const std::vector<Value>& by_rank);

}  // namespace varve
