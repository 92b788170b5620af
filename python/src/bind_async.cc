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

/// Returns the exception for an error, or None.
nb::object ErrorOrNone(const Status& status) {
  return status.ok() ? nb::none() : ToException(status);
}

/// Calls a Python function, on any thread.
template <class... Arguments>
void Tell(const nb::object& function, const char* what, Arguments&&... arguments) {
  try {
    function(std::forward<Arguments>(arguments)...);
  } catch (nb::python_error& error) {
    error.discard_as_unraisable(what);
  }
}

/// Sets the callbacks: on_staged(None or exception), on_done(report or None, None or exception).
/// Errors get the path.
void SetCallbacks(nb::object on_staged, nb::object on_done, const std::string& path,
                  AsyncSaveOptions* options) {
  options->on_staged = [tell = Shared(std::move(on_staged)), path](const Status& status) {
    const nb::gil_scoped_acquire gil;
    Tell(*tell, "on_staged", ErrorOrNone(status.With({.path = path})));
  };
  options->on_done = [tell = Shared(std::move(on_done)), path](const Result<SaveReport>& report) {
    const nb::gil_scoped_acquire gil;
    Tell(*tell, "on_done", report.ok() ? nb::cast(*report) : nb::none(),
         ErrorOrNone(report.status().With({.path = path})));
  };
}

/// Destroys an object whose destructor waits for threads that may wait for the GIL. Does nothing in
/// a forked child, which has neither those threads nor the memory.
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

/// Returns the agent that `program` is, or none.
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

/// Takes the content of `state`. `not_ready`: None, or why this rank cannot take part.
std::shared_ptr<AsyncSaveHandle> AsyncSavePython(const std::shared_ptr<Stager>& stager,
                                                 State& state, const FsPath& path,
                                                 AsyncSaveOptions options,
                                                 const nb::object& coordinator,
                                                 nb::object on_staged, nb::object on_done,
                                                 const nb::object& not_ready) {
  SetCallbacks(std::move(on_staged), std::move(on_done), path.text, &options);
  if (!not_ready.is_none()) {
    options.ready = ToStatus(not_ready, nb::cast<std::string>(nb::str(not_ready)));
  }
  std::stop_source stop;
  options.save.stop = stop.get_token();
  const auto ranks = MakeCoordinator(coordinator);
  std::shared_ptr<AsyncSaveHandle> handle;
  RunCollective(
      [&] {
        handle = EndingWithoutGil(new AsyncSaveHandle(
            AsyncSave(std::move(state), path.text, std::move(options), *stager, *ranks)));
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
  Bound<AsyncSaveOptions>(module, "AsyncSaveOptions", nullptr)
      .Field("save", &AsyncSaveOptions::save)
      .Field("overlapped", &AsyncSaveOptions::overlapped)
      .Field("check_torn", &AsyncSaveOptions::check_torn)
      .Field("retries", &AsyncSaveOptions::retries)
      .Field("retry_delay", &AsyncSaveOptions::retry_delay)
      .Field("deadline", &AsyncSaveOptions::deadline)
      .Field("deferred", &AsyncSaveOptions::deferred);
  module.def("async_save", &AsyncSavePython, nb::arg("stager"), nb::arg("state"), nb::arg("path"),
             nb::arg("options"), nb::arg("coordinator").none(), nb::arg("on_staged"),
             nb::arg("on_done"), nb::arg("not_ready").none());
}

}  // namespace varve::python
