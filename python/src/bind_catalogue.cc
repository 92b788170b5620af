#include <nanobind/ndarray.h>

#include "bindings.h"
#include "bound.h"
#include "interruptible.h"
#include "varve/catalogue.h"
#include "varve/checkpoint.h"
#include "varve/manage.h"
#include "varve/storage.h"

namespace varve::python {
namespace {

constexpr const char* kEntryDoc = R"(A checkpoint, or stale files, as `list_checkpoints` finds them.

Attributes:
    name: In the directory. Of stale files and of a save under way it is a hidden one.
    format: "varve" or, of other software, "dcp", "safetensors" or "torch".
    state: "whole", "incomplete", "damaged", "unsupported", "unreadable", "displaced", "saving", "stale", "failed" or
           "quarantined".
    detail: Why it is not whole.
    step: The training step in its name; None where the name has none.
    bytes: Of its data files.
    world_size: Number of ranks that saved it; 0 where that is unknown.
)";

constexpr const char* kDamageDoc = R"(A stretch of bytes that is not what was written.

Attributes:
    file: The file, relative to the checkpoint's directory.
    begin: First byte of the stretch.
    end: The byte behind the last one.
    tensors: Names of the tensors and plain values that lie there.
    problem: How the bytes differ, for people.
)";

std::vector<CheckpointEntry> ListPython(const FsPath& directory) {
  return Stoppable(directory.text, [&](const std::stop_token& stop) {
    return ListCheckpoints(directory.text, AnyStorage(), stop);
  });
}

std::vector<Damage> VerifyPython(const FsPath& path, nb::handle progress) {
  ProgressFunction function;
  if (!AsProgress::FromPython(progress, &function)) {
    RaiseUnfit("progress", progress, AsProgress::kWanted);
  }
  return Stoppable(path.text,
                   [&](const std::stop_token& stop) {
                     return Verify(path.text, AnyStorage(), function, stop);
                   })
      .damages;
}

bool RepairPython(const FsPath& path, bool without_record) {
  const LostRecord lost = without_record ? LostRecord::kRepair : LostRecord::kRefuse;
  return Stoppable(path.text,
                   [&](const std::stop_token& stop) {
                     return Repair(path.text, AnyStorage(), stop, lost);
                   })
      .changed;
}

nb::object GarbagePython(const FsPath& directory, nb::handle dry_run) {
  const auto dry = Argument<DryRun>("dry_run", dry_run);
  return AsPath::ToPython(Stoppable(directory.text, [&](const std::stop_token& stop) {
                            return CollectGarbage(directory.text, dry, AnyStorage(), stop);
                          }).removed);
}

/// Returns the files that were not part of the checkpoint.
nb::object RemovePython(const FsPath& path, nb::handle dry_run) {
  const auto dry = Argument<DryRun>("dry_run", dry_run);
  return AsPath::ToPython(Stoppable(path.text, [&](const std::stop_token& stop) {
                            return RemoveCheckpoint(path.text, dry, AnyStorage(), stop);
                          }).others);
}

nb::object LatestPython(const FsPath& directory) {
  return ToPath(Stoppable(directory.text, [&](const std::stop_token& stop) {
    return NewestCheckpoint(directory.text, AnyStorage(), stop);
  }));
}

/// Returns [(name, bytes), ...].
nb::list SideFilesPython(const FsPath& path) {
  const auto reader = Stoppable(path.text, [&](const std::stop_token& stop) {
    return CheckpointReader::Open(path.text, AnyStorage(), stop);
  });
  nb::list out;
  for (const StoredFile& file : reader->metadata().side_files) {
    out.append(nb::make_tuple(nb::str(file.name.data(), file.name.size()), file.size));
  }
  return out;
}

nb::bytes ReadSideFilePython(const FsPath& path, const std::string& name) {
  return ToBytes(Stoppable(path.text, [&](const std::stop_token& stop) -> Result<std::string> {
    VARVE_ASSIGN_OR_RETURN(const auto reader,
                           CheckpointReader::Open(path.text, AnyStorage(), stop));
    return reader->ReadFile(name);
  }));
}

/// Describes an array that speaks DLPack or the buffer protocol, on the CPU, as (dtype code, bits,
/// shape, strides in elements, address). The caller keeps the array alive.
template <class Array>
nb::tuple DescribeArray(const Array& array) {
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
  Bound<CheckpointEntry>(module, "CheckpointEntry", kEntryDoc)
      .Field<AsPath>("name", &CheckpointEntry::name)
      .Field("format", &CheckpointEntry::format)
      .Field("state", &CheckpointEntry::state)
      .Field<AsMessage>("detail", &CheckpointEntry::detail)
      .Field("step", &CheckpointEntry::step)
      .Field("bytes", &CheckpointEntry::bytes)
      .Field("world_size", &CheckpointEntry::world_size)
      .Public("varve");
  Bound<Damage>(module, "Damage", kDamageDoc)
      .Field<AsPath>("file", &Damage::file)
      .Field("begin", &Damage::begin)
      .Field("end", &Damage::end)
      .Field("tensors", &Damage::tensors)
      .Field<AsMessage>("problem", &Damage::problem)
      .Public("varve");
  module.def(
      "resolve_path",
      [](const FsPath& path, bool local) {
        Storage& storage = local ? PosixStorage() : AnyStorage();
        return ToPath(ValueOrRaise(ResolvePath(path.text, storage)));
      },
      nb::arg("path"), nb::arg("local"));
  module.def(
      "ask_anew", [](const FsPath& path) { AskAnew(AnyStorage(), path.text); }, nb::arg("path"));
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
  module.def("verify", &VerifyPython, nb::arg("path"), nb::arg("progress") = nb::none());
  module.def("repair", &RepairPython, nb::arg("path"), nb::arg("without_record"));
  module.def("collect_garbage", &GarbagePython, nb::arg("directory"), nb::arg("dry_run"));
  module.def("remove", &RemovePython, nb::arg("path"), nb::arg("dry_run"));
  module.def("side_files", &SideFilesPython, nb::arg("path"));
  module.def("read_side_file", &ReadSideFilePython, nb::arg("path"), nb::arg("name"));
  module.def("latest", &LatestPython, nb::arg("directory"));
  // Never converted: that would describe a copy that is destroyed when the call returns.
  module.def("describe_array", &DescribeArray<nb::ndarray<nb::ro, nb::device::cpu>>,
             nb::arg("array").noconvert());
  module.def("describe_writable_array", &DescribeArray<nb::ndarray<nb::device::cpu>>,
             nb::arg("array").noconvert());
}

}  // namespace varve::python
