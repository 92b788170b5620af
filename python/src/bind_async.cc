#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>
#include <unistd.h>

#include "async/start.h"
#include "bindings.h"
#include "bound.h"
#include "interruptible.h"
#include "pipeline/host_copies.h"
#include "varve/agent.h"

#ifdef Py_LIMITED_API
// Every CPython since 3.4 exports it, and its headers hide it from modules of the stable ABI.
// Nothing in the stable ABI tells a thread that has released the GIL from one that holds it.
extern "C" int PyGILState_Check();
#endif

namespace varve::python {
namespace {

/// Returns the exception for an error, or None.
nb::object ErrorOrNone(const Status& status) {
  return status.ok() ? nb::none() : ToException(status);
}

/// Calls a Python function for the last time, on any thread, and forgets it. The function holds the
/// save, which holds the function: a circle that Python cannot see.
template <class... Arguments>
void CallOnce(nb::object* function, const char* what, Arguments&&... arguments) {
  const nb::object last = std::move(*function);
  if (!last.is_valid()) {
    return;
  }
  try {
    UntilTheInterpreterEnds([&] { last(std::forward<Arguments>(arguments)...); });
  } catch (nb::python_error& error) {
    error.discard_as_unraisable(what);
  }
}

/// Calls `function` with None or the exception for an error, which gets the path.
std::function<void(const Status&)> OnStaged(nb::object function, const std::string& path) {
  return [tell = Shared(std::move(function)), path](const Status& status) {
    const GilHeld gil;
    UntilTheInterpreterEnds([&] {  // An error is made by code of Python, too.
      CallOnce(tell.get(), "on_staged", ErrorOrNone(status.With({.path = path})));
    });
  };
}

/// Calls `function` with (report or None, None or exception).
std::function<void(const Result<AsyncSaveReport>&)> OnEnd(nb::object function, bool deferred,
                                                          const std::string& path) {
  return [tell = Shared(std::move(function)), deferred, path](const auto& report) {
    const GilHeld gil;
    UntilTheInterpreterEnds([&] {
      const nb::object ended = !report.ok() ? nb::none()
                               : deferred   ? nb::cast(DeferredFrom(*report))
                                            : nb::cast(*report);
      CallOnce(tell.get(), "on_end", ended, ErrorOrNone(report.status().With({.path = path})));
    });
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
              const GilReleased release;
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
    const GilReleased release;
    executor = ConnectToAgent({.program = program->text});
  }
  return ValueOrRaise(std::move(executor));
}

std::shared_ptr<Stager> MakeStager(const StagerOptions& options, nb::object background,
                                   const std::optional<FsPath>& agent) {
  auto made = Stager::Make(options, MakeCoordinator(std::move(background)), ExecutorFrom(agent));
  return EndingWithoutGil(ValueOrRaise(std::move(made)).release());
}

/// Begins a save where a signal can stop it, and takes the content of `state`. `not_ready`: None, or
/// why this rank cannot take part. `on_begun` gets the handle: a signal after the last look for one
/// is raised when this has returned, and the caller does not get what it returns.
std::shared_ptr<AsyncSaveHandle> BeginSave(const std::shared_ptr<Stager>& stager, State& state,
                                           const FsPath& path, AsyncSaveOptions options,
                                           bool deferred, const nb::object& coordinator,
                                           const nb::object& on_begun, nb::object on_staged,
                                           nb::object on_end, const nb::object& not_ready) {
  Status ready;
  if (!not_ready.is_none()) {
    ready = ToStatus(not_ready, nb::cast<std::string>(nb::str(not_ready)));
  }
  options.on_staged = OnStaged(std::move(on_staged), path.text);
  options.on_done = OnEnd(std::move(on_end), deferred, path.text);
  std::stop_source stop;
  options.save.stop = stop.get_token();
  const auto ranks = MakeCoordinator(coordinator);
  std::shared_ptr<AsyncSaveHandle> handle;
  try {
    RunCollective(
        [&] {
          handle = EndingWithoutGil(
              new AsyncSaveHandle(StartSave(std::move(state), path.text, std::move(options),
                                            deferred ? WriteWhen::kDeferred : WriteWhen::kNow,
                                            *stager, *ranks, AnyStorage(), std::move(ready))));
        },
        coordinator, [&] { stop.request_stop(); }, nullptr, "");
    on_begun(handle);
  } catch (const nb::python_error&) {
    if (handle) {  // It has begun, and the caller gets no handle by which to cancel it.
      handle->Cancel();
    }
    throw;
  }
  return handle;
}

/// Binds a member that waits, and that a signal ends.
template <void (Stager::*member)()>
void Wait(const std::shared_ptr<Stager>& stager) {
  WaitOffMain([stager] { ((*stager).*member)(); });
}

}  // namespace

void BindAsync(nb::module_& parent) {
  nb::module_ module = parent.def_submodule("background");
  module.def(
      "copy_pairs",
      [](bool to_host, const nb::list& copies) {
        std::vector<CopyPair> pairs;
        pairs.reserve(nb::len(copies));
        for (const nb::handle copy : copies) {
          const auto memory = [](const nb::handle at) {
            return static_cast<std::byte*>(MemoryAt(nb::cast<std::uintptr_t>(at)));
          };
          CopyPair pair{memory(nb::object(copy[0])), memory(nb::object(copy[1])),
                        nb::cast<std::uint64_t>(nb::object(copy[2]))};
          if (const nb::object cuda = nb::object(copy[3]); !cuda.is_none()) {
            pair.device = nb::cast<int>(nb::object(cuda[0]));
            pair.stream = MemoryAt(nb::cast<std::uintptr_t>(nb::object(cuda[1])));
          }
          pair.name = nb::cast<std::string_view>(nb::object(copy[4]));  // `copies` keeps its bytes.
          pairs.push_back(pair);
        }
        Status status;
        {
          const GilReleased release;
          // A producer of a save calls this while the save holds blocks of the shared pool.
          status = CopyPairs(to_host ? Direction::kToHost : Direction::kToDevice, pairs,
                             BufferPool::OfCopies());
        }
        RaiseIfError(status);
      },
      nb::arg("to_host"), nb::arg("copies"));
  nb::class_<AsyncSaveHandle>(module, "AsyncSaveHandle")
      .def_prop_ro("agreed", [](const AsyncSaveHandle& self) { return self.agreed(); })
      .def_prop_ro("differing_tensors",
                   [](const AsyncSaveHandle& self) { return self.differing_tensors(); })
      .def_prop_ro("differing_objects",
                   [](const AsyncSaveHandle& self) { return self.differing_objects(); })
      .def("cancel", &AsyncSaveHandle::Cancel, nb::call_guard<GilReleased>());
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
           nb::call_guard<GilReleased>())
      .def("wait_prepared", &Wait<&Stager::WaitPrepared>)
      .def_prop_ro("idle", &Stager::idle)
      .def("drain", &Wait<&Stager::Drain>)
      .def("abort", &Wait<&Stager::Abort>);
  Bound<AsyncSaveOptions>(module, "AsyncSaveOptions", nullptr)
      .Field("save", &StagedSaveOptions::save)
      .Field("overlapped", &StagedSaveOptions::overlapped)
      .Field("check_torn", &StagedSaveOptions::check_torn)
      .Field("retries", &StagedSaveOptions::retries)
      .Field("retry_delay", &StagedSaveOptions::retry_delay)
      .Field("deadline", &StagedSaveOptions::deadline);
  module.def("begin_save", &BeginSave, nb::arg("stager"), nb::arg("state"), nb::arg("path"),
             nb::arg("options"), nb::arg("deferred"), nb::arg("coordinator").none(),
             nb::arg("on_begun"), nb::arg("on_staged"), nb::arg("on_end"),
             nb::arg("not_ready").none());
}

}  // namespace varve::python
