/// What `convert` and `unshard` share: formats and types by name, and the report.
#pragma once

#include <cstdint>
#include <map>
#include <stop_token>
#include <string>
#include <utility>

#include "command.h"
#include "progress.h"
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

/// Returns the report of a verb, as text or JSON.
Outcome Describe(const Conversion& done, bool json);

/// Returns InvalidArgument for a limit on memory below 8 MiB. With less, each block of checksums is
/// read many times: with one byte the work is ten thousand times slower and looks as if it hung.
Status CheckMemory(const std::string& verb, std::uint64_t bytes);

/// Runs `convert`, which is Convert or Unshard, with a bar and the report that `json` asks for.
template <class Options, class Function>
Result<Outcome> RunConversion(const std::string& verb, const std::string& source,
                              const std::string& target, Options choices, bool json,
                              const std::stop_token& stop, const Function& convert) {
  VARVE_RETURN_IF_ERROR(CheckMemory(verb, choices.memory_budget));
  Progress progress(verb, json);
  choices.progress = progress.function();
  choices.stop = stop;
  auto report = convert(source, target, choices);
  const double seconds = progress.seconds();
  progress.Finish();
  VARVE_RETURN_IF_ERROR(report.status());
  return Describe({source, target, *std::move(report), seconds}, json);
}

}  // namespace varve::cli
