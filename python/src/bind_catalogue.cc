#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "varve/catalogue.h"
#include "varve/checkpoint.h"
#include "varve/path.h"

namespace varve::python {
namespace {

nb::list ListPython(const FsPath& directory) {
  Result<std::vector<CheckpointEntry>> entries = Internal("not run");
  {
    const nb::gil_scoped_release release;
    entries = ListCheckpoints(directory.text);
  }
  RaiseIfError(entries.status());
  nb::list out;
  for (const CheckpointEntry& entry : *entries) {
    nb::dict item;
    item["name"] = ToPath(entry.name);
    item["format"] = std::string(FormatName(entry.format));
    item["state"] = std::string(StateName(entry.state));
    item["detail"] = ToText(entry.detail);
    item["step"] = entry.step;
    item["bytes"] = entry.bytes;
    item["world_size"] = entry.world_size;
    out.append(item);
  }
  return out;
}

nb::list VerifyPython(const FsPath& path) {
  Result<VerifyReport> report = Internal("not run");
  {
    const nb::gil_scoped_release release;
    report = Verify(path.text);
  }
  RaiseIfError(report.status());
  nb::list out;
  for (const Damage& damage : report->damages) {
    nb::dict item;
    item["file"] = ToPath(damage.file);
    item["begin"] = damage.begin;
    item["end"] = damage.end;
    item["tensors"] = damage.tensors;
    item["problem"] = ToText(damage.problem);
    out.append(item);
  }
  return out;
}

bool RepairPython(const FsPath& path) {
  Result<RepairReport> report = Internal("not run");
  {
    const nb::gil_scoped_release release;
    report = Repair(path.text);
  }
  RaiseIfError(report.status());
  return report->changed;
}

nb::list GarbagePython(const FsPath& directory, bool dry_run) {
  Result<GarbageReport> report = Internal("not run");
  {
    const nb::gil_scoped_release release;
    report = CollectGarbage(directory.text, dry_run);
  }
  RaiseIfError(report.status());
  nb::list out;
  for (const std::string& path : report->removed) {
    out.append(ToPath(path));
  }
  return out;
}

nb::tuple RemovePython(const FsPath& path, bool dry_run) {
  Result<RemovalReport> report = Internal("not run");
  {
    const nb::gil_scoped_release release;
    report = RemoveCheckpoint(path.text, dry_run);
  }
  RaiseIfError(report.status());
  nb::list others;
  for (const std::string& name : report->others) {
    others.append(ToPath(name));
  }
  return nb::make_tuple(report->bytes, others);
}

nb::object LatestPython(const FsPath& directory) {
  Result<std::string> newest = Internal("not run");
  {
    const nb::gil_scoped_release release;
    newest = NewestCheckpoint(directory.text);
  }
  return ToPath(ValueOrRaise(std::move(newest)));
}

/// [(name, bytes), ...]
nb::list SideFilesPython(const FsPath& path) {
  Result<std::unique_ptr<CheckpointReader>> reader = Internal("not run");
  {
    const nb::gil_scoped_release release;
    reader = CheckpointReader::Open(path.text);
  }
  RaiseIfError(reader.status());
  nb::list out;
  for (const StoredFile& file : (*reader)->metadata().side_files) {
    out.append(nb::make_tuple(nb::str(file.name.data(), file.name.size()), file.size));
  }
  return out;
}

nb::bytes ReadSideFilePython(const FsPath& path, const std::string& name) {
  Result<std::string> content = Internal("not run");
  {
    const nb::gil_scoped_release release;
    auto reader = CheckpointReader::Open(path.text);
    content = reader.ok() ? (*reader)->ReadFile(name) : Result<std::string>(reader.status());
  }
  RaiseIfError(content.status());
  return nb::bytes(content->data(), content->size());
}

/// Any array that speaks DLPack or the buffer protocol, on the CPU, as
/// (dtype code, bits, shape, strides in elements, address). The caller keeps the array alive.
template <class Array>
nb::tuple DescribeArray(Array array) {
  nb::list shape;
  nb::list strides;
  for (std::size_t d = 0; d < array.ndim(); ++d) {
    shape.append(array.shape(d));
    strides.append(array.stride(d));
  }
  return nb::make_tuple(static_cast<int>(array.dtype().code), static_cast<int>(array.dtype().bits),
                        nb::tuple(shape), nb::tuple(strides),
                        reinterpret_cast<std::uintptr_t>(array.data()));
}

}  // namespace

void BindCatalogue(nb::module_& module) {
  module.def(
      "resolve_path",
      [](const FsPath& path) { return ToPath(ValueOrRaise(ResolvePath(path.text))); },
      nb::arg("path"));
  module.def("list_checkpoints", &ListPython, nb::arg("directory"));
  module.def("verify", &VerifyPython, nb::arg("path"));
  module.def("repair", &RepairPython, nb::arg("path"));
  module.def("collect_garbage", &GarbagePython, nb::arg("directory"), nb::arg("dry_run") = false);
  module.def("remove", &RemovePython, nb::arg("path"), nb::arg("dry_run") = false);
  module.def("side_files", &SideFilesPython, nb::arg("path"));
  module.def("read_side_file", &ReadSideFilePython, nb::arg("path"), nb::arg("name"));
  module.def("latest", &LatestPython, nb::arg("directory"));
  // Never converted: that would describe a copy that is gone when the call returns.
  module.def("describe_array", &DescribeArray<nb::ndarray<nb::ro, nb::device::cpu>>,
             nb::arg("array").noconvert());
  module.def("describe_writable_array", &DescribeArray<nb::ndarray<nb::device::cpu>>,
             nb::arg("array").noconvert());
}

}  // namespace varve::python
