#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <initializer_list>
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
#include "varve/checkpoint.h"
#include "varve/options.h"

namespace varve::python {
namespace {

class PythonCoordinator final : public Coordinator {
 public:
  explicit PythonCoordinator(nb::object object)
      : object_(Shared(std::move(object))),
        rank_(nb::cast<int>(object_->attr("rank"))),
        size_(nb::cast<int>(object_->attr("size"))) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  Status Send(int to, std::string_view message, Deadline deadline) override {
    const nb::gil_scoped_acquire gil;
    return Guard([&] {
      object_->attr("send")(to, nb::bytes(message.data(), message.size()), Seconds(deadline));
      return Status::Ok();
    });
  }

  Result<std::string> Receive(int from, Deadline deadline) override {
    const nb::gil_scoped_acquire gil;
    std::string message;
    Status status = Guard([&] {
      const auto bytes = nb::cast<nb::bytes>(object_->attr("receive")(from, Seconds(deadline)));
      message.assign(bytes.c_str(), bytes.size());
      return Status::Ok();
    });
    VARVE_RETURN_IF_ERROR(status);
    return message;
  }

 private:
  static double Seconds(Deadline deadline) {
    return std::max(
        std::chrono::duration<double>(deadline - std::chrono::steady_clock::now()).count(), 0.0);
  }

  template <class Call>
  static Status Guard(Call call) {
    try {
      return call();
    } catch (nb::python_error& error) {
      return Unavailable(nb::cast<std::string>(nb::str(error.value())));
    } catch (const std::exception& error) {
      return Unavailable(error.what());
    }
  }

  std::shared_ptr<nb::object> object_;
  int rank_;
  int size_;
};

/// (fqn, dtype number, shape, offsets or None, sizes or None, address, strides or None). Offsets
/// and sizes None mean the whole tensor. A source on a CUDA device has (device, stream) behind it.
template <class Tensor>
Tensor TensorFrom(nb::handle item) {
  Tensor tensor;
  tensor.fqn = nb::cast<std::string>(nb::object(item[0]));
  tensor.dtype = DTypeAt(nb::object(item[1]));
  tensor.shape = Integers<Dims>(nb::object(item[2]));
  if (const nb::object offsets = item[3]; offsets.is_none()) {
    tensor.box = WholeBox(tensor.shape);
  } else {
    tensor.box = {Integers<Dims>(offsets), Integers<Dims>(nb::object(item[4]))};
  }
  tensor.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(nb::object(item[5])));
  if (const nb::object strides = item[6]; !strides.is_none()) {
    tensor.strides = Integers<Strides>(strides);
  }
  if constexpr (std::is_same_v<Tensor, SourceTensor>) {
    if (nb::len(item) > 7) {
      const nb::object cuda = item[7];
      tensor.cuda =
          CudaMemory{nb::cast<int>(nb::object(cuda[0])),
                     reinterpret_cast<void*>(nb::cast<std::uintptr_t>(nb::object(cuda[1])))};
    }
  }
  return tensor;
}

template <class Tensor>
std::vector<Tensor> TensorsFrom(const nb::list& list) {
  std::vector<Tensor> tensors;
  tensors.reserve(nb::len(list));
  for (const nb::handle item : list) {
    tensors.push_back(TensorFrom<Tensor>(item));
  }
  return tensors;
}

/// Progress to a Python callable, at most every 50 ms: taking the GIL for each block would make
/// the training thread wait.
ProgressFunction MakeProgress(nb::object callback) {
  if (callback.is_none()) {
    return {};
  }
  auto last = std::make_shared<std::atomic<std::int64_t>>(0);
  auto holder = Shared(std::move(callback));
  return [last, holder](std::uint64_t done, std::uint64_t total) {
    const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(
                         std::chrono::steady_clock::now().time_since_epoch())
                         .count();
    std::int64_t before = *last;
    if ((now - before < 50 && done != total) || !last->compare_exchange_strong(before, now)) {
      return;
    }
    const nb::gil_scoped_acquire gil;
    try {
      (*holder)(done, total);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("progress callback");
    }
  };
}

/// Sets `out` to the value that options[name] names, if it is given.
template <class T>
void SetOneOf(const nb::dict& options, const char* name, T* out,
              std::initializer_list<std::pair<std::string_view, T>> values) {
  if (!options.contains(name)) {
    return;
  }
  std::string given;
  Set(options, name, &given);
  std::string wanted;
  for (const auto& [text, value] : values) {
    if (given == text) {
      *out = value;
      return;
    }
    wanted += (wanted.empty() ? "\"" : " or \"") + std::string(text) + "\"";
  }
  Raise(InvalidArgument(std::string(name) + "=\"" + given + "\": want " + wanted));
}

SaveId SaveIdFrom(const nb::bytes& bytes) {
  SaveId id;
  if (bytes.size() != id.bytes.size()) {
    Raise(InvalidArgument("save_id must be 16 bytes"));
  }
  std::memcpy(id.bytes.data(), bytes.c_str(), id.bytes.size());
  return id;
}

}  // namespace

std::shared_ptr<nb::object> Shared(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object* last) {
            const nb::gil_scoped_acquire gil;
            delete last;
          }};
}

void SetSeconds(const nb::dict& options, const char* name, std::chrono::milliseconds* out) {
  // 31 years: may be added to a time without overflow.
  constexpr double kForEver = 1e9;
  double seconds = -1;
  Set(options, name, &seconds);
  if (!options.contains(name)) {
    return;
  }
  if (!(seconds >= 0)) {  // Nor when it is not a number.
    RaiseUnfit(name, nb::object(options[name]));
  }
  *out = std::chrono::milliseconds(static_cast<std::int64_t>(std::min(seconds, kForEver) * 1000));
}

std::string Shown(nb::handle value) {
  return nb::cast<std::string>(nb::module_::import_("varve._arguments").attr("shown")(value));
}

void RaiseUnfit(const char* name, nb::handle value) {
  Raise(InvalidArgument(std::string(name) + "=" + Shown(value) + ": not a value that it can have"));
}

SaveOptions SaveOptionsFrom(const nb::dict& options) {
  SaveOptions out;
  SetOneOf(options, "format", &out.format, {{"varve", Format::kVarve}, {"dcp", Format::kDcp}});
  SetOneOf(options, "on_difference", &out.on_difference,
           {{"warn", OnDifference::kReport}, {"error", OnDifference::kError}});
  SetOneOf(options, "check_replicas", &out.check_replicas,
           {{"samples", CheckReplicas::kSamples}, {"full", CheckReplicas::kFull}});
  SetOverwrite(options, &out.overwrite);
  Set(options, "coordinate", &out.coordinate);
  Set(options, "direct", &out.direct);
  Set(options, "writes_in_flight", &out.writes_in_flight);
  Set(options, "block_bytes", &out.block_bytes);
  Set(options, "max_write_bandwidth", &out.max_write_bandwidth);
  SetSeconds(options, "timeout", &out.timeout);
  if (options.contains("save_id")) {
    out.save_id = SaveIdFrom(nb::cast<nb::bytes>(options["save_id"]));
  }
  if (options.contains("progress")) {
    if (!nb::isinstance<nb::callable>(options["progress"])) {
      Raise(InvalidArgument("progress: want a function of bytes written and bytes in all"));
    }
    out.progress = MakeProgress(options["progress"]);
  }
  return out;
}

State StateFrom(const nb::list& tensors, const nb::list& objects, const nb::bytes& structure,
                const nb::dict& options) {
  State state;
  if (options.contains("files")) {
    for (const nb::handle item : nb::cast<nb::list>(nb::object(options["files"]))) {
      const auto content = nb::cast<nb::bytes>(nb::object(item[1]));
      state.files.push_back(
          {nb::cast<std::string>(nb::object(item[0])), {content.c_str(), content.size()}});
    }
  }
  state.tensors = TensorsFrom<SourceTensor>(tensors);
  for (const nb::handle item : objects) {
    const auto encoded = nb::cast<nb::bytes>(nb::object(item[1]));
    state.objects.push_back(
        {nb::cast<std::string>(nb::object(item[0])), {encoded.c_str(), encoded.size()}});
  }
  state.structure.assign(structure.c_str(), structure.size());
  return state;
}

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

nb::dict SavePython(const nb::list& tensors, const nb::list& objects, const nb::bytes& structure,
                    const FsPath& path, const nb::dict& options, const nb::object& coordinator) {
  const State state = StateFrom(tensors, objects, structure, options);
  SaveOptions save_options = SaveOptionsFrom(options);
  ProgressCount count;
  save_options.progress = Counting(&count, std::move(save_options.progress));
  std::stop_source stop;
  save_options.stop = stop.get_token();
  const auto ranks = MakeCoordinator(coordinator);
  Result<SaveReport> report = Internal("not run");
  RunCollective([&] { report = Save(state, path.text, save_options, *ranks); }, coordinator,
                [&] { stop.request_stop(); }, &count, "writing");
  RaiseIfError(report.status());
  return ToDict(*report);
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
  explicit PythonReader(const FsPath& path)
      : reader_(Stoppable([&](const std::stop_token& stop) {
          agent_ = OpenAgentMemory(path.text, PosixStorage(),
                                   [this](std::uint64_t bytes) { from_agent_ += bytes; });
          return CheckpointReader::Open(path.text, agent_ != nullptr ? *agent_ : PosixStorage(),
                                        stop);
        })) {}

  CheckpointReader& reader() { return *reader_; }

  nb::object Structure() {
    return FromValue(
        Stoppable([&](const std::stop_token& stop) { return reader().ReadStructure(stop); }),
        false);
  }

  nb::list Objects(const std::vector<std::string>& fqns, bool allow_pickle) {
    const std::vector<Value> values =
        Stoppable([&](const std::stop_token& stop) { return reader().ReadObjects(fqns, stop); });
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
    const Metadata& metadata = reader().metadata();
    for (const TensorMetadata& tensor : metadata.tensors) {
      nb::list chunks;
      for (const Chunk& chunk : tensor.chunks) {
        chunks.append(nb::make_tuple(TupleOf(chunk.box.offsets), TupleOf(chunk.box.sizes),
                                     ToPath(metadata.files[chunk.extent.file].name),
                                     chunk.extent.begin, chunk.extent.end));
      }
      out[nb::str(tensor.fqn.data(), tensor.fqn.size())] = chunks;
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

  nb::dict LoadInto(const nb::list& targets, const std::vector<std::string>& objects,
                    const std::vector<std::string>& missing,
                    const std::vector<std::string>& mismatched,
                    const std::vector<std::string>& known, const nb::dict& options,
                    const nb::object& coordinator) {
    const LoadRequest request{TensorsFrom<TargetTensor>(targets), objects, missing, mismatched,
                              known};
    LoadOptions load_options = LoadOptionsFrom(options);
    ProgressCount count;
    load_options.progress = Counting(&count, std::move(load_options.progress));
    std::stop_source stop;
    load_options.stop = stop.get_token();
    const auto ranks = MakeCoordinator(coordinator);
    Result<LoadReport> report = Internal("not run");
    RunCollective([&] { report = Load(reader(), request, load_options, *ranks); }, coordinator,
                  [&] { stop.request_stop(); }, &count, "reading");
    RaiseIfError(report.status());
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
  std::atomic<std::uint64_t> from_agent_{0};
  std::unique_ptr<Storage> agent_;  // Null where no agent has anything of it.
  std::unique_ptr<CheckpointReader> reader_;
};

}  // namespace

DType DTypeAt(nb::handle number) {
  const int value = nb::cast<int>(number);
  if (value < 0 || value >= kDTypeCount) {
    Raise(InvalidArgument("unknown dtype number " + std::to_string(value)));
  }
  return static_cast<DType>(value);
}

std::unique_ptr<Coordinator> MakeCoordinator(nb::object object) {
  if (object.is_none()) {
    return MakeSingleProcessCoordinator();
  }
  return std::make_unique<PythonCoordinator>(std::move(object));
}

void BindCheckpoint(nb::module_& module) {
  module.def("save", &SavePython, nb::arg("tensors"), nb::arg("objects"), nb::arg("structure"),
             nb::arg("path"), nb::arg("options"), nb::arg("coordinator").none());
  // Tells the other ranks, within the exchange they are in, that this one failed.
  module.def(
      "report_failure",
      [](const nb::object& coordinator, const FsPath& what, const FsPath& message,
         const nb::dict& options) {
        std::chrono::milliseconds timeout = std::chrono::minutes(30);
        SetSeconds(options, "timeout", &timeout);
        const auto ranks = MakeCoordinator(coordinator);
        Status status;
        RunCollective(
            [&] {
              status = Agree(*ranks, what.text, InvalidArgument(message.text),
                             std::chrono::steady_clock::now() + timeout);
            },
            coordinator, [] {}, nullptr, "");
        RaiseIfError(status);
      },
      nb::arg("coordinator").none(), nb::arg("what"), nb::arg("message"), nb::arg("options"));
  nb::class_<PythonReader>(module, "Reader")
      .def(nb::init<const FsPath&>(), nb::arg("path"))
      .def_prop_ro("directory",
                   [](PythonReader& self) { return ToPath(self.reader().directory()); })
      .def_prop_ro("world_size",
                   [](PythonReader& self) { return self.reader().metadata().world_size; })
      .def_prop_ro("format",
                   [](PythonReader& self) {
                     return std::string(FormatName(self.reader().metadata().format));
                   })
      .def("chunks", &PythonReader::Chunks)
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
