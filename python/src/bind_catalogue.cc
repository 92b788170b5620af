#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "interruptible.h"
#include "varve/catalogue.h"
#include "varve/checkpoint.h"
#include "varve/path.h"

namespace varve::python {
namespace {

nb::list ListPython(const FsPath& directory) {
  const std::vector<CheckpointEntry> entries =
      Stoppable(directory.text, [&](const std::stop_token& stop) {
        return ListCheckpoints(directory.text, PosixStorage(), stop);
      });
  nb::list out;
  for (const CheckpointEntry& entry : entries) {
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
  const VerifyReport report = Stoppable(path.text, [&](const std::stop_token& stop) {
    return Verify(path.text, PosixStorage(), {}, stop);
  });
  nb::list out;
  for (const Damage& damage : report.damages) {
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
  const RepairReport report = Stoppable(path.text, [&](const std::stop_token& stop) {
    return Repair(path.text, PosixStorage(), stop);
  });
  return report.changed;
}

nb::list GarbagePython(const FsPath& directory, bool dry_run) {
  const GarbageReport report = Stoppable(directory.text, [&](const std::stop_token& stop) {
    return CollectGarbage(directory.text, dry_run ? DryRun::kYes : DryRun::kNo, PosixStorage(),
                          stop);
  });
  nb::list out;
  for (const std::string& path : report.removed) {
    out.append(ToPath(path));
  }
  return out;
}

nb::tuple RemovePython(const FsPath& path, bool dry_run) {
  const RemovalReport report = Stoppable(path.text, [&](const std::stop_token& stop) {
    return RemoveCheckpoint(path.text, dry_run ? DryRun::kYes : DryRun::kNo, PosixStorage(), stop);
  });
  nb::list others;
  for (const std::string& name : report.others) {
    others.append(ToPath(name));
  }
  return nb::make_tuple(report.bytes, others);
}

nb::object LatestPython(const FsPath& directory) {
  return ToPath(Stoppable(directory.text, [&](const std::stop_token& stop) {
    return NewestCheckpoint(directory.text, PosixStorage(), stop);
  }));
}

/// [(name, bytes), ...]
nb::list SideFilesPython(const FsPath& path) {
  const auto reader = Stoppable(path.text, [&](const std::stop_token& stop) {
    return CheckpointReader::Open(path.text, PosixStorage(), stop);
  });
  nb::list out;
  for (const StoredFile& file : reader->metadata().side_files) {
    out.append(nb::make_tuple(nb::str(file.name.data(), file.name.size()), file.size));
  }
  return out;
}

nb::bytes ReadSideFilePython(const FsPath& path, const std::string& name) {
  const std::string content =
      Stoppable(path.text, [&](const std::stop_token& stop) -> Result<std::string> {
        VARVE_ASSIGN_OR_RETURN(const auto reader,
                               CheckpointReader::Open(path.text, PosixStorage(), stop));
        return reader->ReadFile(name);
      });
  return nb::bytes(content.data(), content.size());
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
  module.def(
      "step_from_name", [](const FsPath& name) { return StepFromName(name.text); },
      nb::arg("name"));
  nb::class_<Globs>(module, "Globs")
      .def(
          "__init__",
          [](Globs* globs, const nb::list& texts) {
            std::vector<std::string> listed;
            for (const nb::handle text : texts) {
              listed.push_back(TextOf(text));
            }
            new (globs) Globs(listed);
          },
          nb::arg("globs"))
      .def(
          "__contains__",
          [](const Globs& globs, const nb::str& name) { return globs.Match(TextOf(name)); },
          nb::arg("name"));
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
