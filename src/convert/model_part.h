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

  [[nodiscard]] bool Holds(std::string_view name) const {
    return name.starts_with(prefix) &&
           (excluded_prefix.empty() || !name.starts_with(excluded_prefix));
  }
};

/// Finds the model by the containers of the state: the entry "model", "module", "model_state_dict"
/// or "state_dict" of the top level that is a container of tensors; else all but the entries whose
/// name begins with "optim". A None structure has no entries.
ModelPart FindModel(const Value& structure);

/// Returns the entries of the top level of which `is_written` is false for some names, with the
/// numbers of these.
std::vector<std::string> DescribeRest(const Metadata& metadata,
                                      const std::function<bool(std::string_view)>& is_written);

}  // namespace varve
