/// Tied tensors of a save: which names are aliases of a stored one.
#pragma once

#include <cstdint>
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

/// Who writes a value with an archive, and which of its plan's values that is.
struct Writer {
  std::uint32_t rank = 0;
  std::uint32_t item = 0;
};
using Writers = std::map<std::string_view, Writer>;  ///< By the value's name.

/// Adds the values whose storages are tied to those of such a value: the same rank writes them, as
/// the same bytes.
void FollowTies(std::span<const LocalPlan> plans, const Aliases& aliases, Writers* writers);

/// Adds to `assignment` the items of `plan` that are aliases of what it stores.
void AssignAliases(const LocalPlan& plan, const Aliases& aliases, RankAssignment* assignment);

}  // namespace varve
