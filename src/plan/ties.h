/// Tied tensors of a save: which names are aliases of a stored one.
#pragma once

#include <map>
#include <span>
#include <string_view>

#include "plan/save_plan.h"

namespace varve {

/// Alias to the name under which the tensor is stored; views into the plans.
using Aliases = std::map<std::string_view, std::string_view>;

/// Returns the tensors that need not be stored under their own names: on every rank that holds a
/// shard of such a tensor or of the one that it is an alias of, all shards of the two are tied.
Aliases SettleTies(std::span<const LocalPlan> plans);

/// Adds to `assignment` the items of `plan` that are aliases of what it stores.
void AssignAliases(const LocalPlan& plan, const Aliases& aliases, RankAssignment* assignment);

}  // namespace varve
