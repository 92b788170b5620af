/// What `convert` and `unshard` share: formats and types by name, and the report.
#pragma once

#include <map>
#include <string>

#include "varve/convert.h"
#include "varve/status.h"
#include "varve/tensor.h"

namespace varve::cli {

const std::map<std::string, ConvertTarget>& ConvertTargets();

/// Parses PyTorch's names and short ones. Errors: InvalidArgument.
Result<DType> ParseDType(const std::string& name);

/// A conversion that has ended.
struct Conversion {
  std::string source;
  std::string target;
  ConvertReport report;
  double seconds = 0;
};

std::string AsJson(const Conversion& done);
std::string AsText(const Conversion& done);

}  // namespace varve::cli
