// Functions that the binding files share. The module holds no logic: it converts arguments,
// releases the GIL and calls the C++ API.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>

#include "casters.h"
#include "gil.h"
#include "varve/checkpoint.h"
#include "varve/coordinator.h"
#include "varve/options.h"
#include "varve/status.h"
#include "varve/tensor.h"
#include "varve/value.h"

namespace varve {
class Channel;
}

namespace varve::python {

namespace nb = nanobind;

/// Returns the Python exception for an error.
nb::object ToException(const Status& status);

/// Returns the exception that was raised. Before Python 3.12 one that C has raised, as in int("x"),
/// may still be a bare text. Requires: the GIL.
nb::object Raised(const nb::python_error& error);

/// Returns the error for an exception: code and attributes of one of ours, InvalidArgument for any
/// other.
Status ToStatus(nb::handle error, std::string message);

/// Raises the Python exception for an error; the table of types is varve/errors.py.
[[noreturn]] void Raise(const Status& status);

inline void RaiseIfError(const Status& status) {
  if (!status.ok()) {
    Raise(status);
  }
}

template <class T>
T ValueOrRaise(Result<T> result) {
  RaiseIfError(result.status());
  return std::move(result).value();
}

/// Calls a function that takes the storage's time, without the GIL. Requires: the GIL.
template <class Function>
auto Unlocked(const Function& function) {
  const GilReleased release;
  return function();
}

/// Does the same; an error that has no path gets `about`.
template <class Function>
auto Unlocked(const std::string& about, const Function& function) {
  return Unlocked(function).With({.path = about});
}

/// Converts between Python objects and values; exotic types go through varve/_values.py. `path`
/// says where in the state the object is, for messages. Both need the GIL.
Value ToValue(nb::handle object, const std::string& path, bool allow_pickle);
nb::object FromValue(const Value& value, bool allow_pickle);

nb::bytes ToBytes(const std::string& bytes);

/// Returns the memory at an address that Python gave, such as a tensor's data_ptr().
template <class T = void>
T* MemoryAt(std::uintptr_t address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): Python has addresses as numbers only.
  return reinterpret_cast<T*>(address);
}

/// Device and stream of device memory, as Python gives them; nothing for host memory.
using Cuda = std::optional<std::pair<int, std::uintptr_t>>;

inline std::optional<OnCuda> OnCudaOf(const Cuda& cuda) {
  return cuda ? std::optional(OnCuda{cuda->first, MemoryAt(cuda->second)}) : std::nullopt;
}

/// Returns the UTF-8 of a str, which may hold lone surrogates as Python's own file names do.
std::string TextOf(nb::handle text);

/// Returns a message for people: it may quote damaged bytes, which must not become an error of
/// their own.
nb::object ToText(const std::string& text);
/// Returns a path, as os.fsdecode gives it.
nb::object ToPath(const std::string& path);

/// Returns a coordinator, in step at first, that sends by a Python Coordinator or Channel; None
/// gives a single process. Its messages do without the GIL.
std::unique_ptr<Coordinator> MakeCoordinator(nb::handle object);

/// Returns the channel of a Python Channel; null for any other object.
std::shared_ptr<Channel> ChannelOf(nb::handle object);

/// Progress to a Python callable, at most every 50 ms: taking the GIL for each block would make
/// the training thread wait. None gives a null function.
ProgressFunction MakeProgress(nb::object callback);

/// Returns a value's text for a message, at most a line: see varve/_arguments.py.
std::string Shown(nb::handle value);

/// Raises InvalidArgumentError for a value that the option does not take.
[[noreturn]] void RaiseUnfit(const char* name, nb::handle value, const std::string& want);

/// Returns a Python object that C++ may copy and drop on any thread.
std::shared_ptr<nb::object> Shared(nb::object object);

void BindAgent(nb::module_& module);
void BindAsync(nb::module_& parent);
void BindValues(nb::module_& module);
void BindChannel(nb::module_& module);
void BindCheckpoint(nb::module_& module);
void BindReader(nb::module_& module);
void BindReports(nb::module_& module);
void BindTensors(nb::module_& parent);
void BindCatalogue(nb::module_& module);
void BindConvert(nb::module_& module);
void BindUpload(nb::module_& parent);
void BindDcp(nb::module_& module);
void BindFiles(nb::module_& module);
void BindManage(nb::module_& module);
void BindStorage(nb::module_& module);

}  // namespace varve::python
