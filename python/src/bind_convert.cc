#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "interruptible.h"
#include "varve/convert.h"

namespace varve::python {
namespace {

ConvertTarget TargetNamed(const std::string& name) {
  if (name == "varve") {
    return ConvertTarget::kVarve;
  }
  if (name == "dcp") {
    return ConvertTarget::kDcp;
  }
  if (name == "safetensors") {
    return ConvertTarget::kSafetensors;
  }
  if (name == "hf") {
    return ConvertTarget::kHf;
  }
  if (name == "torch") {
    return ConvertTarget::kTorch;
  }
  Raise(InvalidArgument("to=\"" + name +
                        "\": want \"varve\", \"dcp\", \"safetensors\", \"hf\" or \"torch\""));
}

nb::dict ConvertPython(const FsPath& source, const FsPath& target, const std::string& to,
                       const std::optional<std::string>& dtype, std::uint64_t shard_size,
                       std::vector<std::string> include, std::vector<std::string> exclude,
                       std::vector<std::pair<std::string, std::string>> rename, bool overwrite,
                       std::uint64_t memory_budget, bool everything, const std::string& hf_config) {
  ConvertOptions options;
  options.to = TargetNamed(to);
  if (dtype) {
    options.dtype = DTypeFromName(*dtype);
    if (!options.dtype) {
      Raise(InvalidArgument("dtype=\"" + *dtype + "\": no such type"));
    }
  }
  options.shard_size = shard_size;
  options.include = std::move(include);
  options.exclude = std::move(exclude);
  options.rename = std::move(rename);
  options.overwrite = overwrite;
  options.memory_budget = memory_budget;
  options.everything = everything;
  options.hf_config = hf_config;
  const ConvertReport report = Stoppable(source.text, [&](const std::stop_token& stop) {
    options.stop = stop;
    return Convert(source.text, target.text, options);
  });
  nb::dict out;
  out["tensors"] = report.tensor_count;
  out["objects"] = report.object_count;
  out["bytes"] = report.bytes;
  out["skipped"] = report.skipped;
  out["objects_left_out"] = report.objects_left_out;
  out["left_out"] = report.left_out;
  out["files"] = report.files;
  out["files_left_out"] = report.files_left_out;
  return out;
}

const char* KindName(Difference::Kind kind) {
  switch (kind) {
    case Difference::Kind::kOnlyInA: return "only in a";
    case Difference::Kind::kOnlyInB: return "only in b";
    case Difference::Kind::kShape: return "shape";
    case Difference::Kind::kDType: return "dtype";
    case Difference::Kind::kValues: return "values";
  }
  return "values";
}

nb::list DiffPython(const FsPath& a, const FsPath& b) {
  const DiffReport report = Stoppable(a.text, [&](const std::stop_token& stop) {
    return Diff(a.text, b.text, PosixStorage(), {}, stop);
  });
  nb::list out;
  for (const Difference& difference : report.differences) {
    nb::dict item;
    item["fqn"] = difference.fqn;
    item["kind"] = KindName(difference.kind);
    item["detail"] = ToText(difference.detail);
    item["elements"] = difference.elements;
    item["differing"] = difference.differing;
    item["max_abs_error"] = difference.max_abs_error;
    item["max_rel_error"] = difference.max_rel_error;
    out.append(item);
  }
  return out;
}

}  // namespace

void BindConvert(nb::module_& module) {
  module.def("convert", &ConvertPython, nb::arg("source"), nb::arg("target"), nb::arg("to"),
             nb::arg("dtype").none(), nb::arg("shard_size"), nb::arg("include"), nb::arg("exclude"),
             nb::arg("rename"), nb::arg("overwrite"), nb::arg("memory_budget"),
             nb::arg("everything"), nb::arg("hf_config") = "");
  module.def("diff", &DiffPython, nb::arg("a"), nb::arg("b"));
}

}  // namespace varve::python
