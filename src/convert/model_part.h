/// The part of a training checkpoint that is the model.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "varve/metadata.h"
#include "varve/value.h"

namespace varve {

/// The names that belong to the model; by default all do.
struct ModelPart {
  std::string prefix;           ///< Names of the model begin with it; may be empty.
  std::string excluded_prefix;  ///< No name of the model begins with it, where it is not empty.

  /// Returns what to add to the error of a conversion that finds nothing of the model.
  [[nodiscard]] std::string WhyNothing() const;

  [[nodiscard]] bool Holds(std::string_view name) const {
    return name.starts_with(prefix) &&
           (excluded_prefix.empty() || !name.starts_with(excluded_prefix));
  }
};

/// Returns what lies under a key of a mapping; null where nothing does.
const Value* ItemAt(const Value& structure, std::string_view key);

/// Returns which of "model", "module", "model_state_dict" and "state_dict" is a container of
/// tensors in a mapping; empty where none is.
std::string ModelKey(const Value& structure);

/// Where the model lies, and beside it the optimizer.
struct TrainingState {
  std::string prefix;  ///< Names in it begin with it: "training."; empty for the top level.
  const Value* structure = nullptr;
};

/// Returns the top level where that has a ModelKey, or the one mapping in it that has, with an
/// optimizer beside it; else the top level.
TrainingState FindTraining(const Value& structure);

/// Finds the model by the containers of the state: ModelKey of FindTraining; else the one item of a
/// list "models" beside "optimizers", as varve.integrations.accelerate saves it; else all but the
/// entries whose name begins with "optim". A None structure has no entries.
ModelPart FindModel(const Value& structure);

/// Returns the entries of the top level of which `is_written` is false for some names, with the
/// numbers of these.
std::vector<std::string> DescribeRest(const Metadata& metadata,
                                      const std::function<bool(std::string_view)>& is_written);

}  // namespace varve
