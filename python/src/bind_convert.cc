#include <stop_token>
#include <string>
#include <vector>

#include "bindings.h"
#include "bound.h"
#include "interruptible.h"
#include "varve/convert.h"

namespace varve::python {
namespace {

constexpr const char* kConvertReportDoc =
    R"(The result of a `convert`: what is in the target, and what is left out.

Attributes:
    tensors: Number of tensors written.
    objects: Number of plain values written.
    bytes: Of all files written.
    skipped: Names of tensors whose dtype the format cannot hold.
    objects_left_out: Number of plain values that the format cannot hold.
    merged: Names under which the ranks that saved the source held different values. The target has
        the lowest rank's.
    classes_left_out: Classes that the target does not keep, each with its number of entries and the
        first of them. It has the inner tensors of a tensor that is made of others, and the plain
        value of an object.
    left_out: Entries of the top level that are not part of the model, each with its counts.
    files: Names of the side files that were copied.
    files_left_out: Number of side files that the target, a single file, cannot hold.
)";

constexpr const char* kDifferenceDoc = R"(How one tensor or plain value differs in two checkpoints.

Attributes:
    fqn: Its full name.
    kind: "only in a", "only in b", "shape", "dtype" or "values".
    detail: Both sides, for people.
    elements: Number of elements of the tensor.
    differing: Number of elements whose value differs; NaN equals NaN.
    max_abs_error: Over finite pairs; infinite where only one side is finite.
    max_rel_error: |a - b| / max(|a|, |b|), over the same pairs.
)";

ConvertReport ConvertPython(const FsPath& source, const FsPath& target, ConvertOptions options) {
  return Stoppable(source.text, [&](const std::stop_token& stop) {
    options.stop = stop;
    return Convert(source.text, target.text, options);
  });
}

ConvertReport UnshardPython(const FsPath& source, const FsPath& target, UnshardOptions options) {
  return Stoppable(source.text, [&](const std::stop_token& stop) {
    options.stop = stop;
    return Unshard(source.text, target.text, options);
  });
}

std::vector<Difference> DiffPython(const FsPath& a, const FsPath& b) {
  return Stoppable(a.text,
                   [&](const std::stop_token& stop) {
                     return Diff(a.text, b.text, AnyStorage(), {}, stop);
                   })
      .differences;
}

}  // namespace

void BindConvert(nb::module_& module) {
  Bound<ConvertOptions>(module, "ConvertOptions", nullptr)
      .Field("to", &ConvertOptions::to)
      .Field("dtype", &ConvertOptions::dtype)
      .Field("shard_size", &ConvertOptions::shard_size)
      .Field("include", &ConvertOptions::include)
      .Field("exclude", &ConvertOptions::exclude)
      .Field("rename", &ConvertOptions::rename)
      .Field("everything", &ConvertOptions::everything)
      .Field("part", &ConvertOptions::part)
      .Field("overwrite", &ConvertOptions::overwrite)
      .Field<AsPath>("hf_config", &ConvertOptions::hf_config)
      .Field("memory_budget", &ConvertOptions::memory_budget)
      .Keyword<AsProgress>("progress", &ConvertOptions::progress);
  Bound<UnshardOptions>(module, "UnshardOptions", nullptr)
      .Field("to", &UnshardOptions::to)
      .Field("model_only", &UnshardOptions::model_only)
      .Field("olmo_safetensors", &UnshardOptions::olmo_safetensors)
      .Field("dtype", &UnshardOptions::dtype)
      .Field("shard_size", &UnshardOptions::shard_size)
      .Field("overwrite", &UnshardOptions::overwrite)
      .Field("memory_budget", &UnshardOptions::memory_budget)
      .Keyword<AsProgress>("progress", &UnshardOptions::progress);
  Bound<ConvertReport>(module, "ConvertReport", kConvertReportDoc)
      .Field("tensors", &ConvertReport::tensor_count)
      .Field("objects", &ConvertReport::object_count)
      .Field("bytes", &ConvertReport::bytes)
      .Field("skipped", &ConvertReport::skipped)
      .Field("objects_left_out", &ConvertReport::objects_left_out)
      .Field("merged", &ConvertReport::merged)
      .Field("classes_left_out", &ConvertReport::classes_left_out)
      .Field("left_out", &ConvertReport::left_out)
      .Field("files", &ConvertReport::files)
      .Field("files_left_out", &ConvertReport::files_left_out)
      .Public("varve");
  Bound<Difference>(module, "Difference", kDifferenceDoc)
      .Field("fqn", &Difference::fqn)
      .Field("kind", &Difference::kind)
      .Field<AsMessage>("detail", &Difference::detail)
      .Field("elements", &Difference::elements)
      .Field("differing", &Difference::differing)
      .Field("max_abs_error", &Difference::max_abs_error)
      .Field("max_rel_error", &Difference::max_rel_error)
      .Public("varve");
  module.def("convert", &ConvertPython, nb::arg("source"), nb::arg("target"), nb::arg("options"));
  module.def("unshard", &UnshardPython, nb::arg("source"), nb::arg("target"), nb::arg("options"));
  module.def(
      "read_hf_config",
      [](const FsPath& directory) {
        std::vector<std::pair<std::string, nb::bytes>> files;
        auto read = Unlocked(directory.text, [&] { return ReadHfConfig(directory.text); });
        for (const SideFile& file : ValueOrRaise(std::move(read))) {
          files.emplace_back(file.name, nb::bytes(file.content.data(), file.content.size()));
        }
        return files;
      },
      nb::arg("directory"));
  module.def("diff", &DiffPython, nb::arg("a"), nb::arg("b"));
}

}  // namespace varve::python
