/// The containers of a state, from the paths that DCP's default planner keeps of its entries.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "interop/pickle/tree.h"
#include "varve/status.h"
#include "varve/value.h"

namespace varve {

/// Entries deeper than this are refused; Python's side of Varve opens no more either.
inline constexpr std::size_t kMaxStructureDepth = 200;

/// A stored entry, in the order of the index.
struct DcpLeaf {
  std::string_view fqn;
  bool is_tensor = false;
};

/// Decodes the structure. `planner_data` is a dict of fqn to path: a tuple of strs (keys) and ints
/// (positions in lists). Entries without a path stand in the outermost dict under their whole name;
/// paths without an entry say nothing. Positions that no entry has (DCP stores nothing for an empty
/// dict) get an empty dict. When planner_data is kNoPickle or None, all names stand in one dict.
///
/// Nothing, when planner_data is of another kind or says what no structure can: it belongs to the
/// planner, and another planner may keep anything there.
/// Errors: DataLoss for paths that contradict each other; InvalidArgument for paths too deep and
/// for lists with far more positions than entries.
Result<std::optional<Value>> DcpStructure(const PickleTree& tree, PickleRef planner_data,
                                          const std::vector<DcpLeaf>& leaves);

/// The attribute of the index in which Varve keeps the structure, encoded as a Value: paths have
/// neither the types of keys nor empty containers, and do not tell kinds of dicts apart.
inline constexpr std::string_view kDcpStructure = "varve_structure";

/// Decodes the attribute. Nothing, when its leaves are not `leaves`, each once, or when it is no
/// structure: other software may have changed the index and kept the attribute.
std::optional<Value> VarveStructure(std::string_view encoded, const std::vector<DcpLeaf>& leaves);

/// An optimizer's state dict whose `state` has numbers for keys, as text.
struct DcpOptimizer {
  Value* state = nullptr;           ///< In the structure that was searched.
  std::vector<std::string> params;  ///< The names of the values `param_groups.{N}.params`.
};

/// Finds those of a structure that was made of paths. Paths do not tell whether a key was the
/// number of a parameter or a parameter's name that looks like one; the values named in `params`
/// do.
std::vector<DcpOptimizer> FindDcpOptimizers(Value* structure);

/// Makes ints of the keys of such a `state`.
void NumberKeys(Value* state);

}  // namespace varve
