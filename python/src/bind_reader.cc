// An open checkpoint: its index, and the bytes of its tensors and values.

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <stop_token>
#include <string_view>
#include <utility>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "interruptible.h"
#include "varve/agent.h"
#include "varve/catalogue.h"
#include "varve/checkpoint.h"

namespace varve::python {
namespace {

/// True, False or "exact".
Strict StrictFrom(nb::handle value) {
  if (nb::isinstance<nb::bool_>(value)) {
    return nb::cast<bool>(value) ? Strict::kWanted : Strict::kOff;
  }
  if (!nb::isinstance<nb::str>(value) || nb::cast<std::string>(value) != "exact") {
    RaiseUnfit("strict", value);
  }
  return Strict::kExact;
}

LoadOptions LoadOptionsFrom(const nb::dict& options) {
  LoadOptions out;
  if (options.contains("strict")) {
    out.strict = StrictFrom(options["strict"]);
  }
  Set(options, "cast", &out.cast);
  Set(options, "max_gap_bytes", &out.max_gap_bytes);
  Set(options, "io_threads", &out.io_threads);
  SetSeconds(options, "timeout", &out.timeout);
  if (options.contains("progress")) {
    out.progress = MakeProgress(options["progress"]);
  }
  return out;
}

nb::tuple TupleOf(const Dims& dims) {
  nb::list out;
  for (const std::uint64_t size : dims) {
    out.append(size);
  }
  return nb::tuple(out);
}

class PythonReader {
 public:
  PythonReader(const FsPath& path, bool use_agent)
      : reader_(Stoppable(path.text, [&](const std::stop_token& stop) {
          if (use_agent) {
            agent_ = OpenAgentMemory(path.text, PosixStorage(),
                                     [this](std::uint64_t bytes) { from_agent_ += bytes; });
          }
          return CheckpointReader::Open(path.text, agent_ != nullptr ? *agent_ : PosixStorage(),
                                        stop);
        })) {}

  CheckpointReader& reader() { return *reader_; }

  nb::object Structure() {
    return FromValue(
        Stoppable(reader().directory(),
                  [&](const std::stop_token& stop) { return reader().ReadStructure(stop); }),
        false);
  }

  nb::list Objects(const std::vector<std::string>& fqns, bool allow_pickle) {
    const std::vector<Value> values =
        Stoppable(reader().directory(),
                  [&](const std::stop_token& stop) { return reader().ReadObjects(fqns, stop); });
    nb::list out;
    for (std::size_t i = 0; i < fqns.size(); ++i) {
      try {
        out.append(FromValue(values[i], allow_pickle));
      } catch (const nb::python_error& error) {
        nb::module_::import_("varve._values").attr("name_failure")(fqns[i], error.value());
      }
    }
    return out;
  }

  /// {fqn: (dtype number, shape)} of the tensors with these names that are there; None is all.
  nb::dict Tensors(const std::optional<std::vector<std::string>>& names) {
    nb::dict out;
    const auto add = [&out](const TensorMetadata& tensor) {
      out[nb::str(tensor.fqn.data(), tensor.fqn.size())] =
          nb::make_tuple(static_cast<int>(tensor.dtype), TupleOf(tensor.shape));
    };
    const Metadata& metadata = reader().metadata();
    if (!names) {
      std::for_each(metadata.tensors.begin(), metadata.tensors.end(), add);
      return out;
    }
    for (const std::string& name : *names) {
      if (const TensorMetadata* tensor = metadata.FindTensor(name)) {
        add(*tensor);
      }
    }
    return out;
  }

  nb::list TensorNames() {
    nb::list out;
    for (const TensorMetadata& tensor : reader().metadata().tensors) {
      out.append(nb::str(tensor.fqn.data(), tensor.fqn.size()));
    }
    return out;
  }

  nb::list ObjectNames() {
    nb::list out;
    for (const ObjectMetadata& object : reader().metadata().objects) {
      out.append(nb::str(object.fqn.data(), object.fqn.size()));
    }
    return out;
  }

  /// {fqn: [(offsets, sizes, file, begin, end), ...]}
  nb::dict Chunks() {
    nb::dict out;
    for (const TensorMetadata& tensor : reader().metadata().tensors) {
      out[nb::str(tensor.fqn.data(), tensor.fqn.size())] = ChunksOf(tensor, /*with_rank=*/false);
    }
    return out;
  }

  /// [(offsets, sizes, file, begin, end, rank of the file), ...]
  nb::list TensorChunks(const std::string& name) {
    const TensorMetadata* const tensor = reader().metadata().FindTensor(name);
    if (tensor == nullptr) {
      Raise(NotFound(reader().directory() + " holds no tensor \"" + name + "\""));
    }
    return ChunksOf(*tensor, /*with_rank=*/true);
  }

  /// [(name, whether it is a tensor), ...] of all that is stored, in natural order.
  nb::list Names() {
    std::vector<std::pair<std::string_view, bool>> names;
    for (const TensorMetadata& tensor : reader().metadata().tensors) {
      names.emplace_back(tensor.fqn, true);
    }
    for (const ObjectMetadata& object : reader().metadata().objects) {
      names.emplace_back(object.fqn, false);
    }
    std::sort(names.begin(), names.end(),
              [](const auto& a, const auto& b) { return NaturalLess(a.first, b.first); });
    nb::list out;
    for (const auto& [name, is_tensor] : names) {
      out.append(nb::make_tuple(nb::str(name.data(), name.size()), is_tensor));
    }
    return out;
  }

  /// {fqn: (file, begin, end)}, of values that are stored in a file.
  nb::dict ObjectExtents() {
    nb::dict out;
    const Metadata& metadata = reader().metadata();
    for (const ObjectMetadata& object : metadata.objects) {
      if (object.extent.encoding != Encoding::kInline) {
        out[nb::str(object.fqn.data(), object.fqn.size())] =
            nb::make_tuple(ToPath(metadata.files[object.extent.file].name), object.extent.begin,
                           object.extent.end);
      }
    }
    return out;
  }

  /// Fills the targets from this process alone; returns the bytes read.
  std::uint64_t ReadInto(const nb::list& targets) {
    const std::vector<TargetTensor> wanted = TargetsFrom(targets);
    return Stoppable(reader().directory(), [&](const std::stop_token& stop) {
      LoadOptions options;
      options.stop = stop;
      return reader().ReadTensors(wanted, options);
    });
  }

  nb::dict LoadInto(const nb::list& targets, const std::vector<std::string>& objects,
                    const std::vector<std::string>& missing,
                    const std::vector<std::string>& mismatched,
                    const std::vector<std::string>& known, const nb::dict& options,
                    const nb::object& coordinator) {
    const LoadRequest request{TargetsFrom(targets), objects, missing, mismatched, known};
    LoadOptions load_options = LoadOptionsFrom(options);
    ProgressCount count;
    load_options.progress = Counting(&count, std::move(load_options.progress));
    std::stop_source stop;
    load_options.stop = stop.get_token();
    const auto ranks = MakeCoordinator(coordinator);
    Result<LoadReport> report = Internal("not run");
    RunCollective([&] { report = Load(reader(), request, load_options, *ranks); }, coordinator,
                  [&] { stop.request_stop(); }, &count, "reading");
    RaiseIfError(report.status().With({.path = reader().directory()}));
    nb::dict out;
    out["loaded"] = report->loaded;
    out["bytes_read"] = report->bytes_read;
    out["bytes_from_agent"] = from_agent_.load();
    out["seconds"] = report->seconds;
    out["missing"] = report->missing;
    out["unexpected"] = report->unexpected;
    out["mismatched"] = report->mismatched;
    return out;
  }

 private:
  nb::list ChunksOf(const TensorMetadata& tensor, bool with_rank) {
    const Metadata& metadata = reader().metadata();
    nb::list chunks;
    for (const Chunk& chunk : tensor.chunks) {
      const DataFile& file = metadata.files[chunk.extent.file];
      const nb::tuple known =
          nb::make_tuple(TupleOf(chunk.box.offsets), TupleOf(chunk.box.sizes), ToPath(file.name),
                         chunk.extent.begin, chunk.extent.end);
      chunks.append(with_rank ? nb::tuple(known + nb::make_tuple(file.rank)) : known);
    }
    return chunks;
  }

  std::atomic<std::uint64_t> from_agent_{0};
  std::unique_ptr<Storage> agent_;  // Null where no agent has anything of it.
  std::unique_ptr<CheckpointReader> reader_;
};

}  // namespace

void BindReader(nb::module_& module) {
  nb::class_<PythonReader>(module, "Reader")
      .def(nb::init<const FsPath&, bool>(), nb::arg("path"), nb::arg("use_agent") = true)
      .def_prop_ro("directory",
                   [](PythonReader& self) { return ToPath(self.reader().directory()); })
      .def_prop_ro("world_size",
                   [](PythonReader& self) { return self.reader().metadata().world_size; })
      .def_prop_ro("format",
                   [](PythonReader& self) {
                     return std::string(FormatName(self.reader().metadata().format));
                   })
      .def_prop_ro("save_id",
                   [](PythonReader& self) {
                     const SaveId& id = self.reader().metadata().save_id;
                     return id == SaveId{} ? nb::object(nb::none()) : nb::cast(ToString(id));
                   })
      .def_prop_ro("bytes",
                   [](PythonReader& self) { return self.reader().metadata().TotalBytes(); })
      .def("names", &PythonReader::Names)
      .def("chunks", &PythonReader::Chunks)
      .def("tensor_chunks", &PythonReader::TensorChunks, nb::arg("name"))
      .def("read_into", &PythonReader::ReadInto, nb::arg("targets"))
      .def("object_extents", &PythonReader::ObjectExtents)
      .def("structure", &PythonReader::Structure)
      .def("tensors", &PythonReader::Tensors, nb::arg("names") = nb::none())
      .def("tensor_names", &PythonReader::TensorNames)
      .def("object_names", &PythonReader::ObjectNames)
      .def("objects", &PythonReader::Objects, nb::arg("fqns"), nb::arg("allow_pickle") = false)
      .def("load", &PythonReader::LoadInto, nb::arg("targets"), nb::arg("objects"),
           nb::arg("missing"), nb::arg("mismatched"), nb::arg("known"), nb::arg("options"),
           nb::arg("coordinator").none());
}

}  // namespace varve::python
