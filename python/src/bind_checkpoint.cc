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
#include "bound.h"
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

/// The memory of a source: `item` has (device, stream) at its end where it is on a CUDA device,
/// and no strides then.
TensorSource SourceFrom(nb::handle item, const void* data, Strides strides) {
  if (nb::len(item) <= 7) {
    return HostMemory{data, std::move(strides)};
  }
  if (!strides.empty()) {
    Raise(InvalidArgument("tensor \"" + nb::cast<std::string>(nb::object(item[0])) +
                          "\" is on a CUDA device and has strides"));
  }
  const nb::object cuda = item[7];
  return CudaMemory{data, nb::cast<int>(nb::object(cuda[0])),
                    reinterpret_cast<void*>(nb::cast<std::uintptr_t>(nb::object(cuda[1])))};
}

/// (fqn, dtype number, shape, address), and then strides, offsets and sizes or None. Offsets and
/// sizes None mean the whole tensor. A source on a CUDA device has (device, stream) behind it.
template <class Tensor>
Tensor TensorFrom(nb::handle item) {
  Tensor tensor;
  tensor.fqn = nb::cast<std::string>(nb::object(item[0]));
  tensor.dtype = DTypeAt(nb::object(item[1]));
  tensor.shape = Integers<Dims>(nb::object(item[2]));
  const std::size_t given = nb::len(item);
  auto* const data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(nb::object(item[3])));
  Strides strides;
  if (given > 4 && !nb::object(item[4]).is_none()) {
    strides = Integers<Strides>(nb::object(item[4]));
  }
  if (given <= 5 || nb::object(item[5]).is_none()) {
    tensor.box = WholeBox(tensor.shape);
  } else {
    tensor.box = {Integers<Dims>(nb::object(item[5])), Integers<Dims>(nb::object(item[6]))};
  }
  if constexpr (std::is_same_v<Tensor, SourceTensor>) {
    tensor.source = SourceFrom(item, data, std::move(strides));
  } else {
    tensor.data = data;
    tensor.strides = std::move(strides);
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

}  // namespace

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

namespace {

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
  if (options.contains(name)) {
    *out = Argument<std::chrono::milliseconds>(name, options[name]);
  }
}

std::string Shown(nb::handle value) {
  return nb::cast<std::string>(nb::module_::import_("varve._arguments").attr("shown")(value));
}

void RaiseUnfit(const char* name, nb::handle value, const std::string& want) {
  Raise(InvalidArgument(std::string(name) + "=" + Shown(value) + ": want " + want));
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
  RaiseIfError(report.status().With({.path = path.text}));
  return ToDict(*report);
}

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
         const nb::object& error, nb::handle timeout) {
        const Status failure = ToStatus(error, message.text);
        const auto limit = Argument<std::chrono::milliseconds>("timeout", timeout);
        const auto ranks = MakeCoordinator(coordinator);
        Status status;
        RunCollective(
            [&] {
              status = Agree(*ranks, what.text, failure, std::chrono::steady_clock::now() + limit);
            },
            coordinator, [] {}, nullptr, "");
        RaiseIfError(status);
      },
      nb::arg("coordinator").none(), nb::arg("what"), nb::arg("message"), nb::arg("error"),
      nb::arg("timeout"));
}

}  // namespace varve::python
