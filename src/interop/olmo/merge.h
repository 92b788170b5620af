/// States that every rank's file holds: replicated values once, the parts of sharded tensors put
/// together.
#pragma once

#include <string>
#include <vector>

#include "interop/olmo/pieces.h"
#include "interop/state_tree.h"
#include "varve/status.h"

namespace varve {

/// Merges the states of ranks 0 to the last; rank R's file is number R of `check`. Containers must
/// have the same kinds, lengths and keys on all ranks, in any order of keys: the first rank's
/// counts. Whole tensors and values must be equal. Sharded tensors must be shared in the same way;
/// parts that several ranks store must be equal and count once, parts that none stores are left
/// out. `name` is the FQN, for messages. Errors: DataLoss naming the entry and two files.
Result<StateNode> MergeRanks(const std::string& name, std::vector<StateNode*> ranks,
                             const ReplicaCheck& check);

}  // namespace varve
