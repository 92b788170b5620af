/// The tensors of a checkpoint that are made of others, which are stored in their place.
#pragma once

#include <string>
#include <vector>

#include "varve/checkpoint.h"

namespace varve::cli {

/// A tensor that is made of others.
struct WrappedTensor {
  std::string fqn;
  std::string of_class;            ///< "module.qualified.name".
  std::vector<std::string> inner;  ///< The names of its inner tensors, below `fqn`.
};

/// Lists them, inner ones first. Empty where the structure cannot be read, which the reader's other
/// functions report.
std::vector<WrappedTensor> WrappedTensors(CheckpointReader& reader);

}  // namespace varve::cli
