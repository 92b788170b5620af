#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>
#include <unistd.h>

#include "bindings.h"
#include "bound.h"
#include "interruptible.h"
#include "varve/agent.h"
#include "varve/async_save.h"
#include "varve/host_buffer.h"

namespace varve::python {
namespace {

/// The exception for an error, or None.
nb::object ErrorOrNone(const Status& status) {
  return status.ok() ? nb::none() : ToException(status);
}

/// Calls a Python function from whatever thread this is.
template <class... Arguments>
void Tell(const nb::object& function, const char* what, Arguments&&... arguments) {
  try {
    function(std::forward<Arguments>(arguments)...);
  } catch (nb::python_error& error) {
    error.discard_as_unraisable(what);
  }
}

AsyncSaveOptions AsyncSaveOptionsFrom(const nb::dict& options, const std::string& path) {
  AsyncSaveOptions out;
  out.save = SaveOptionsFrom(options);
  Set(options, "overlapped", &out.overlapped);
  Set(options, "retries", &out.retries);
  Set(options, "deferred", &out.deferred);
  SetSeconds(options, "retry_delay", &out.retry_delay);
  if (options.contains("check_torn")) {
    Set(options, "check_torn", &out.check_torn.emplace());
  }
  if (options.contains("deadline")) {
    SetSeconds(options, "deadline", &out.deadline.emplace());
  }
  if (options.contains("not_ready")) {
    const nb::object why(options["not_ready"]);
    out.ready = ToStatus(why, nb::cast<std::string>(nb::str(why)));
  }
  // (None or exception), (report or None, None or exception).
  out.on_staged = [tell = Shared(nb::object(options["on_staged"])), path](const Status& status) {
    const nb::gil_scoped_acquire gil;
    Tell(*tell, "on_staged", ErrorOrNone(status.With({.path = path})));
  };
  out.on_done = [tell = Shared(nb::object(options["on_done"])),
                 path](const Result<SaveReport>& report) {
    const nb::gil_scoped_acquire gil;
    nb::object made = nb::none();
    if (report.ok()) {
      nb::dict known = ToDict(*report);
      known["staging_seconds"] = report->staging_seconds;
      known["in_waves"] = report->in_waves;
      known["attempts"] = report->attempts;
      known["deferred"] = report->deferred;
      known["device_bytes"] = report->device_bytes;
      known["pageable_bytes"] = report->pageable_bytes;
      made = known;
    }
    Tell(*tell, "on_done", made, ErrorOrNone(report.status().With({.path = path})));
  };
  return out;
}

/// Destroys what waits, when it ends, for threads that may be waiting for the GIL. Not in a forked
/// child: those threads are not there, and the memory was not given to it.
template <class T>
std::shared_ptr<T> EndingWithoutGil(T* object) {
  return {object, [owner = ::getpid()](T* last) {
            if (::getpid() != owner) {
              return;
            }
            if (PyGILState_Check() != 0) {
              const nb::gil_scoped_release release;
              delete last;
            } else {
              delete last;
            }
          }};
}

/// The agent that `program` is, or none.
std::shared_ptr<SaveExecutor> ExecutorFrom(const std::optional<FsPath>& program) {
  if (!program) {
    return nullptr;
  }
  Result<std::shared_ptr<SaveExecutor>> executor = Internal("not run");
  {
    const nb::gil_scoped_release release;
    executor = ConnectToAgent({.program = program->text});
  }
  return ValueOrRaise(std::move(executor));
}

std::shared_ptr<Stager> MakeStager(const StagerOptions& options, nb::object background,
                                   const std::optional<FsPath>& agent) {
  auto made = Stager::Make(options, MakeCoordinator(std::move(background)), ExecutorFrom(agent));
  return EndingWithoutGil(ValueOrRaise(std::move(made)).release());
}

std::shared_ptr<AsyncSaveHandle> AsyncSavePython(const std::shared_ptr<Stager>& stager,
                                                 const nb::list& tensors, const nb::list& objects,
                                                 const nb::bytes& structure, const FsPath& path,
                                                 const nb::dict& options,
                                                 const nb::object& coordinator) {
  State state = StateFrom(tensors, objects, structure, options);
  AsyncSaveOptions save_options = AsyncSaveOptionsFrom(options, path.text);
  std::stop_source stop;
  save_options.save.stop = stop.get_token();
  const auto ranks = MakeCoordinator(coordinator);
  std::shared_ptr<AsyncSaveHandle> handle;
  RunCollective(
      [&] {
        handle = EndingWithoutGil(new AsyncSaveHandle(
            AsyncSave(std::move(state), path.text, std::move(save_options), *stager, *ranks)));
      },
      coordinator, [&] { stop.request_stop(); }, nullptr, "");
  return handle;
}

/// Binds a member that waits, and that a signal ends.
template <void (Stager::*member)()>
void Wait(const std::shared_ptr<Stager>& stager) {
  WaitOffMain([stager] { ((*stager).*member)(); });
}

}  // namespace

void SetOverwrite(const nb::dict& options, Overwrite* out) {
  constexpr const char* kName = "overwrite";
  if (!options.contains(kName)) {
    return;
  }
  const nb::object given(options[kName]);
  if (nb::isinstance<nb::bool_>(given)) {
    *out = nb::cast<bool>(given) ? Overwrite::kAlways : Overwrite::kNever;
  } else if (nb::isinstance<nb::str>(given) && nb::cast<std::string>(given) == "damaged") {
    *out = Overwrite::kDamaged;
  } else {
    Raise(InvalidArgument("overwrite=" + Shown(given) + ": want False, True or \"damaged\""));
  }
}

nb::dict ToDict(const SaveReport& report) {
  nb::dict out;
  out["save_id"] = ToString(report.save_id);
  out["bytes_written"] = report.bytes_written;
  out["seconds"] = report.seconds;
  out["direct"] = report.direct;
  out["differing_objects"] = report.differing_objects;
  out["differing_tensors"] = report.differing_tensors;
  nb::list conflicts;
  for (const std::string& path : report.conflicts) {
    conflicts.append(ToPath(path));
  }
  out["conflicts"] = conflicts;
  return out;
}

void BindAsync(nb::module_& module) {
  nb::class_<HostBuffer>(module, "HostBuffer")
      .def(nb::new_([](std::uint64_t bytes) {
             auto made = HostBuffer::Make(bytes);
             RaiseIfError(made.status());
             return std::move(*made);
           }),
           nb::arg("bytes"))
      .def_prop_ro("size", &HostBuffer::size)
      .def_prop_ro(
          "address",
          [](const HostBuffer& self) { return reinterpret_cast<std::uintptr_t>(self.data()); })
      .def(
          "copy_in",
          [](const HostBuffer& self, const nb::list& copies) {
            std::vector<HostCopy> list;
            list.reserve(nb::len(copies));
            for (const nb::handle copy : copies) {
              list.push_back(
                  {nb::cast<std::uint64_t>(nb::object(copy[0])),
                   reinterpret_cast<const void*>(nb::cast<std::uintptr_t>(nb::object(copy[1]))),
                   nb::cast<std::uint64_t>(nb::object(copy[2]))});
            }
            Status status;
            {
              const nb::gil_scoped_release release;
              status = self.CopyIn(list);
            }
            RaiseIfError(status);
          },
          nb::arg("copies"));
  nb::class_<AsyncSaveHandle>(module, "AsyncSaveHandle")
      .def_prop_ro("differing_tensors",
                   [](const AsyncSaveHandle& self) { return self.differing_tensors(); })
      .def("cancel", &AsyncSaveHandle::Cancel, nb::call_guard<nb::gil_scoped_release>());
  Bound<StagerOptions>(module, "StagerOptions", nullptr)
      .Field("memory_budget", &StagerOptions::budget_bytes)
      .Field("local_ranks", &StagerOptions::local_ranks)
      .Field("copy_threads", &StagerOptions::copy_threads)
      .Field("max_in_flight", &StagerOptions::max_in_flight)
      .Field("when_busy", &StagerOptions::when_busy)
      .Field("copy_from_devices", &StagerOptions::copy_from_devices)
      .Field("pinned_memory", &StagerOptions::pinned_memory);
  nb::class_<Stager>(module, "Stager")
      .def(nb::new_(&MakeStager), nb::arg("options"), nb::arg("background").none(),
           nb::arg("agent").none())
      .def_prop_ro("budget_bytes", &Stager::budget_bytes)
      .def("prepare", &Stager::Prepare, nb::arg("bytes"), nb::arg("cuda_device") = nb::none(),
           nb::call_guard<nb::gil_scoped_release>())
      .def("wait_prepared", &Wait<&Stager::WaitPrepared>)
      .def_prop_ro("idle", &Stager::idle)
      .def("drain", &Wait<&Stager::Drain>)
      .def("abort", &Wait<&Stager::Abort>);
  module.def("async_save", &AsyncSavePython, nb::arg("stager"), nb::arg("tensors"),
             nb::arg("objects"), nb::arg("structure"), nb::arg("path"), nb::arg("options"),
             nb::arg("coordinator").none());
}

}  // namespace varve::python
