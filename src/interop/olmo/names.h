/// Names of parameters in OLMo's checkpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "interop/state_tree.h"
#include "varve/status.h"

namespace varve {

/// Returns a name without the `_fsdp_wrapped_module.` that FSDP puts wherever it wraps a module.
std::string CleanName(std::string_view name);

/// OLMo writes this file last. It has the configuration of the training.
inline constexpr std::string_view kOlmoMark = "config.yaml";
/// OLMo-core's own mark of a whole checkpoint.
inline constexpr std::string_view kOlmoCoreMark = ".metadata.json";
/// The folder of a DCP checkpoint in OLMo's `torch_new` layout and in OLMo-core's.
inline constexpr std::string_view kModelAndOptim = "model_and_optim";

/// Returns R of the file name PREFIX{R}SUFFIX; nothing for other names, for leading zeros, and for
/// more than nine digits.
std::optional<std::uint32_t> RankInName(std::string_view name, std::string_view prefix,
                                        std::string_view suffix);

/// The values that OLMo's trainer has equal on every rank. A rank's file in which one differs is of
/// another save.
inline constexpr std::string_view kOlmoSameOnAllRanks[] = {
    "epoch",
    "global_step",
    "global_train_examples_seen_this_epoch",
    "global_train_tokens_seen",
    "world_size",
    "checkpoints",
    "unsharded_checkpoints",
    "ephemeral_checkpoints",
};

/// The contents of a group's `params` after NameOptimizerState.
enum class GroupParams : std::uint8_t {
  kNames,   ///< The same as `param_names`.
  kStored,  ///< What is stored.
};

/// Gives the state of an optimizer's state dict the names of the parameters for keys: integer ids
/// become the names that the groups' `param_names` give to their `params`, and names are cleaned.
/// Cleans `param_names` and treats `params` as `params` says. An optimizer that stores no
/// `param_names` keeps its ids. Errors: DataLoss for lists of different lengths in one group, and
/// for a state whose id no group has.
Status NameOptimizerState(GroupParams params, StateNode* optim);

}  // namespace varve
